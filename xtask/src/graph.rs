//! Which crate may use which: the table, and its comparison with what cargo says.

use cargo_metadata::{DependencyKind, MetadataCommand};

/// A crate's row: its name and the crates of this workspace that its code may use.
struct Row {
    name: &'static str,
    may_use: &'static [&'static str],
    /// What its tests may use besides, `testkit` apart.
    tests_may_use: &'static [&'static str],
}

const fn row(name: &'static str, may_use: &'static [&'static str]) -> Row {
    Row { name, may_use, tests_may_use: &[] }
}

/// ARCHITECTURE.md says what each crate holds.
const TABLE: &[Row] = &[
    row("tensor", &[]),
    row("mil", &["tensor"]),
    row("kernels", &["tensor"]),
    row("exec", &["mil", "tensor"]),
    Row { name: "ane-port", may_use: &["exec"], tests_may_use: &["mil", "mini-objc", "tensor"] },
    row("import", &["mil", "tensor"]),
    row("ane-model", &["mil", "tensor"]),
    Row { name: "passes", may_use: &["mil", "ane-model", "tensor"], tests_may_use: &["exec"] },
    row("cpu", &["mil", "exec", "kernels", "passes", "tensor"]),
    row("ane-emu", &["mil", "exec", "ane-model", "tensor"]),
    Row {
        name: "ane-driver",
        may_use: &["mil", "exec", "ane-model", "passes", "tensor"],
        tests_may_use: &["ane-emu", "cpu", "import", "llm"],
    },
    Row {
        name: "llm",
        may_use: &["mil", "exec", "import", "tensor"],
        tests_may_use: &["passes", "cpu"],
    },
    Row {
        name: "export",
        may_use: &["mil", "passes", "llm", "tensor"],
        tests_may_use: &["exec", "import", "cpu"],
    },
    row("hub", &[]),
    row("analysis", &["mil", "exec", "ane-model", "tensor"]),
    Row {
        name: "train",
        may_use: &["mil", "exec", "kernels", "import", "passes", "analysis", "tensor"],
        tests_may_use: &["cpu", "llm"],
    },
    row(
        "cli",
        &[
            "tensor",
            "mil",
            "exec",
            "import",
            "passes",
            "cpu",
            "llm",
            "export",
            "hub",
            "analysis",
            "train",
            "ane-model",
            "ane-emu",
            "ane-driver",
            "ane-port",
        ],
    ),
    row("mini-objc", &[]),
    row("testkit", &["mil", "exec", "tensor"]),
    row("xtask", &[]),
];

/// Edges that the table does not allow, crates it does not list, and rows without a crate.
pub(crate) fn check(problems: &mut Vec<String>) -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let short = |name: &str| name.strip_prefix("rigel-").unwrap_or(name).to_owned();
    let mut seen = Vec::new();
    for package in &metadata.packages {
        let name = short(package.name.as_ref());
        let Some(row) = TABLE.iter().find(|r| r.name == name) else {
            problems.push(format!("crate {name} is not in the table of xtask/src/graph.rs"));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            let target = short(&dependency.name);
            let allowed = row.may_use.contains(&target.as_str())
                || dependency.kind == DependencyKind::Development
                    && (target == "testkit" || row.tests_may_use.contains(&target.as_str()));
            if !allowed {
                problems.push(format!("crate {name} may not use {target}"));
            }
        }
        seen.push(name);
    }
    for row in TABLE.iter().filter(|r| !seen.iter().any(|s| s == r.name)) {
        problems.push(format!("xtask/src/graph.rs lists {}, which is no crate", row.name));
    }
    let map = std::fs::read_to_string("ARCHITECTURE.md")?;
    for name in seen.iter().filter(|n| !map.contains(&format!("| `{n}` |"))) {
        problems.push(format!("ARCHITECTURE.md has no row for crate {name}"));
    }
    Ok(())
}
