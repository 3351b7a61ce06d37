//! MIL text: printing and parsing.
