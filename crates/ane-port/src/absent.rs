//! The port of a system without Objective-C: it cannot be opened, so it never exists.

use std::convert::Infallible;
use std::path::PathBuf;

use exec::port::{Machine, Port, PortError, PortResult, Qos, Usage, Verb, VirtualTime, WeightFile};

/// The Neural Engine of this Mac. Here there is none.
#[derive(Debug)]
pub enum AnePort {}

impl AnePort {
    /// Opens the engine of this machine.
    ///
    /// # Errors
    /// Always: the framework is part of macOS.
    pub fn open() -> PortResult<AnePort> {
        let message = format!(
            "no such framework: {}, which is part of macOS; this is {}",
            crate::FRAMEWORK,
            std::env::consts::OS
        );
        Err(PortError { verb: Verb::Open, status: None, message, reason: None })
    }
}

impl Port for AnePort {
    type Model = Infallible;
    type Surface = Infallible;
    type Request = Infallible;

    fn machine(&self) -> &Machine {
        match *self {}
    }

    fn model(&self, _text: &[u8], _weights: &[WeightFile<'_>]) -> PortResult<Infallible> {
        match *self {}
    }

    fn identifier(&self, _model: &Infallible) -> String {
        match *self {}
    }

    fn directory(&self, _model: &Infallible) -> PathBuf {
        match *self {}
    }

    fn compile(&self, _model: &Infallible, _qos: Qos) -> PortResult<()> {
        match *self {}
    }

    fn load(&self, _model: &Infallible, _qos: Qos) -> PortResult<()> {
        match *self {}
    }

    fn unload(&self, _model: &Infallible, _qos: Qos) -> PortResult<()> {
        match *self {}
    }

    fn surface(&self, _bytes: usize) -> PortResult<Infallible> {
        match *self {}
    }

    fn access(&self, _surface: &Infallible, _access: &mut dyn FnMut(&mut [u8])) -> PortResult<()> {
        match *self {}
    }

    fn request(&self, _inputs: &[&Infallible], _outputs: &[&Infallible]) -> PortResult<Infallible> {
        match *self {}
    }

    fn evaluate(&self, _model: &Infallible, _request: &Infallible, _qos: Qos) -> PortResult<()> {
        match *self {}
    }

    fn usage(&self) -> Usage {
        match *self {}
    }

    fn virtual_time(&self) -> VirtualTime {
        match *self {}
    }
}
