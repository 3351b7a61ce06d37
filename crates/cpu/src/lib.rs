//! Backend over the native kernels: fusion, memory plan, threads.
