//! Values and refusals of every operation.
#![allow(clippy::unwrap_used, reason = "a test")]

extern crate rigel_mil as mil;

mod artefacts;
mod catalogue;
mod common;
mod compressed;
mod cost;
mod decompose;
mod half;
mod images;
mod indexing;
mod llm;
mod networks;
mod npz;
mod plain;
mod programs;
mod third_parties;
