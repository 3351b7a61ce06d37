//! What the Neural Engine allows and costs: chips, rules, and where Core ML places operations. Pure
//! functions of a program and a chip.
//!
//! - [`Chip`]: what is known of one engine, from the files in `chips/`, with source and status.
//! - [`check`]: every finding of every rule in a program, for a chip, a path and a system.
//! - [`rules::check_call`]: the rules on calls of the private framework, for whoever makes or takes them.
//! - [`placement::placement`]: where Core ML runs each operation.
//!
//! ```
//! use rigel_ane_model::{CheckOptions, Chip, Path, check};
//!
//! let text = r#"program(1.3)
//! [buildInfo = dict<string, string>({{"emitter", "an example"}})]
//! {
//!     func main<ios18>(tensor<fp16, [1, 4, 1, 64]> x) {
//!         tensor<fp16, [1, 4, 1, 64]> y = gelu(x = x)[name = string("y")];
//!     } -> (y);
//! }"#;
//! let program = mil::text::parse(text, &mil::text::NoBlobs)?.program;
//! let chip = Chip::find("m4").unwrap();
//! let found = check(&program, &CheckOptions { chip, path: Path::Direct, os: None });
//! let gelu = found.iter().find(|d| d.rule.id == "ane-gelu").unwrap();
//! assert_eq!(gelu.name.as_deref(), Some("gelu \"y\""));
//! # Ok::<(), mil::Error>(())
//! ```

pub mod chip;
pub mod os;
pub mod placement;
pub mod rules;

pub use chip::Chip;
pub use os::Os;
pub use rules::{CheckOptions, Diagnostic, Fix, Path, Rule, Severity, check};
