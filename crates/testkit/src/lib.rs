//! Case tables, tolerant comparison, tiny models and random programs for tests.
