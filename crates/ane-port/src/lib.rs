//! The real [`Port`](exec::port::Port): Apple's private engine framework through Objective-C; the only FFI.
//!
//! [`AnePort::open`] finds the framework, its four classes and the nine methods that the port sends, and refuses with a
//! message that names what is missing or has another signature than the one expected. From then on each verb is one
//! message, inside an autorelease pool. Nothing here asks for the operating system: the code is one and the same on
//! macOS and in the tests, which run it elsewhere over a small Objective-C runtime and classes made for it. Where
//! there is no such runtime, the crate is a port that cannot be opened. An exception of Objective-C, which the framework
//! raises for none of these messages as far as is known, ends the process.

#[cfg(not(any(target_vendor = "apple", test)))]
mod absent;
#[cfg(any(target_vendor = "apple", test))]
#[allow(unsafe_code, reason = "a foreign interface")]
mod real;
mod self_test;

#[cfg(not(any(target_vendor = "apple", test)))]
pub use absent::AnePort;
#[cfg(any(target_vendor = "apple", test))]
pub use real::{AnePort, Model, Request, Surface};
pub use self_test::{SelfTestError, self_test};

/// Where macOS keeps the framework.
pub const FRAMEWORK: &str =
    "/System/Library/PrivateFrameworks/AppleNeuralEngine.framework/AppleNeuralEngine";
