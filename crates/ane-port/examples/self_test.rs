//! The first thing to run on a Mac: opens the engine, runs one small program on it and compares every number.

use exec::port::Port;
use rigel_ane_port::{AnePort, self_test};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = AnePort::open()?;
    println!("{:?}", port.machine());
    self_test(&port)?;
    println!("a * w - b is right on the Neural Engine; held now: {:?}", port.usage());
    Ok(())
}
