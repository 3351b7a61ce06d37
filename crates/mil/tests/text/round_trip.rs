//! Cases and random programs: printed and parsed they are the same.
