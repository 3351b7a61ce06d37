//! For tests: an Objective-C runtime small enough to read, so that code written against Apple's is run where there is none.
//!
//! It exports, under their C names, the functions that objc2 calls with its feature `gnustep-1-7`, and the classes of
//! Foundation that `ane-port` uses. Classes, methods, instance variables, counted references and autorelease pools
//! are as Apple documents them; weak references, exceptions, categories, protocols and message forwarding do not exist.
//! What a test needs besides: the objects alive ([`live_objects`]), those autoreleased outside any pool
//! ([`unpooled`]), and systems that differ from the one expected ([`hide_class`], [`change_method`]).
//!
//! It is no runtime for programs: methods are found by comparing names, and nothing is ever unregistered.

#![cfg(not(target_vendor = "apple"))]
#![allow(unsafe_code, reason = "it is the other side of a foreign interface")]

mod abi;
mod changes;
mod class;
mod foundation;
mod memory;

pub use changes::{Change, change_method, hide_class};
pub use memory::{live_objects, unpooled};
