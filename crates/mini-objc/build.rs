//! Empty archives in the place of the libraries that objc2 asks the linker for, because this crate holds what they would.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    for library in ["objc", "gnustep-base"] {
        std::fs::write(folder.join(format!("lib{library}.a")), "!<arch>\n")?;
    }
    println!("cargo::rustc-link-search=native={}", folder.display());
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
