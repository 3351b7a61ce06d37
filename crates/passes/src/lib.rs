//! Program to program: one file a pass.
