//! The report as people read it: findings in the manner of a compiler, by rule, then placement and a summary.

use std::cmp::Reverse;
use std::fmt::Write as _;

use ane_model::{Rule, Severity};
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::policy::SEVERITIES;
use super::words::{self, counted};
use super::{Finding, Report, placed};

/// Findings of one rule that are shown if not all are.
const SHOWN: usize = 3;

/// How to write it.
#[derive(Clone, Copy, Default, Debug)]
pub struct TextOptions {
    /// With a terminal's colours.
    pub colour: bool,
    /// Every finding of every rule, and every operation's placement.
    pub all: bool,
}

impl Report<'_> {
    /// The report for people.
    pub fn text(&self, options: TextOptions) -> String {
        let renderer = if options.colour { Renderer::styled() } else { Renderer::plain() };
        let mut out = String::new();
        for group in self.by_rule() {
            out.push_str(&renderer.render(&[self.rendered(&group, options.all)]));
            out.push_str("\n\n");
        }
        for placed in &self.placements {
            out.push_str(&placed::text(placed, self.subject, self.options.chip, options.all));
            out.push('\n');
        }
        out.push_str(&self.summary());
        out
    }

    /// Findings of one rule and severity together, the worst first, then in the order of the text.
    fn by_rule(&self) -> Vec<Vec<&Finding>> {
        let mut groups: Vec<Vec<&Finding>> = Vec::new();
        for finding in &self.findings {
            let key = |f: &Finding| (f.diagnostic.rule.id, f.diagnostic.severity);
            match groups.iter_mut().find(|g| key(g[0]) == key(finding)) {
                Some(group) => group.push(finding),
                None => groups.push(vec![finding]),
            }
        }
        groups.sort_by_key(|g| Reverse(g[0].diagnostic.severity));
        groups
    }

    /// How many findings have a rewriting that these arguments ask for.
    fn fixable(&self, arguments: &str) -> usize {
        let fixes = self.findings.iter().filter_map(|f| f.diagnostic.rule.rewriting);
        fixes.filter(|&f| words::remedy(f) == arguments).count()
    }

    fn rendered<'s>(&'s self, findings: &[&'s Finding], all: bool) -> Group<'s> {
        let first = findings[0];
        let rule = first.diagnostic.rule;
        let level = match first.diagnostic.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Info => Level::INFO,
        };
        let mut group = Group::with_title(level.primary_title(rule.title).id(rule.id));
        let shown = if all { findings.len() } else { SHOWN };
        for finding in findings.iter().take(shown) {
            group = self.shown(group, finding);
        }
        if let Some(more) = findings.len().checked_sub(shown).filter(|&n| n > 0) {
            group = group.element(note("more", format!("and {more} more; --all shows them")));
        }
        group = group.element(note("device", on_the_device(rule)));
        group = group.element(note("evidence", evidence(rule)));
        group = group.element(note("scope", words::scope(rule)));
        group = group.element(Level::HELP.message(rule.fix));
        match rule.rewriting {
            Some(fix) => group.element(note("fixable", format!("with {}", words::remedy(fix)))),
            None => group,
        }
    }

    /// Adds a finding's line of text with its message, or the message alone.
    fn shown<'s>(&'s self, group: Group<'s>, finding: &'s Finding) -> Group<'s> {
        let diagnostic = &finding.diagnostic;
        let name = self.subject.name();
        let place = finding.place.as_ref();
        let line = place.and_then(|p| Some((p, self.subject.line(p.line)?)));
        let Some((place, line)) = line else {
            let parts = [diagnostic.function.as_deref(), diagnostic.name.as_deref()];
            let parts = parts.into_iter().flatten().chain([&*diagnostic.message]);
            let message = parts.collect::<Vec<_>>().join(": ");
            return group.element(Origin::path(name)).element(note("here", message));
        };
        let pointer = AnnotationKind::Primary.span(place.bytes.clone());
        let snippet = Snippet::source(line).path(name).line_start(place.line);
        group.element(snippet.annotation(pointer.label(&*diagnostic.message)))
    }

    fn summary(&self) -> String {
        let o = &self.options;
        let [errors, warnings, infos] = SEVERITIES.map(|s| self.count(s));
        let mut out = format!(
            "{}: {}, {}, {} for {} through {}, {}; {} denied",
            self.subject.name(),
            counted(errors, "error", "errors"),
            counted(warnings, "warning", "warnings"),
            counted(infos, "remark", "remarks"),
            o.chip.title,
            words::route_in_words(o.route),
            words::system(o.os),
            self.denied(),
        );
        for remedy in [words::FIX, words::FIX_INTERFACE] {
            let fixable = self.fixable(remedy);
            if fixable > 0 {
                let findings = counted(fixable, "finding", "findings");
                let _ = write!(out, "\n{findings} fixable with {remedy}");
            }
        }
        if self.allowed > 0 {
            let _ = write!(out, "\n{} allowed", counted(self.allowed, "finding", "findings"));
        }
        if let Some(known) = self.known {
            let _ =
                write!(out, "\n{} known from the baseline", counted(known, "finding", "findings"));
        }
        for gone in &self.vanished {
            let place = [gone.function.as_deref(), gone.op.as_deref()];
            let place = place.into_iter().flatten().collect::<Vec<_>>().join(" ");
            let _ = write!(out, "\nno more of the baseline: {} {place}", gone.rule);
        }
        out
    }
}

fn note<'a>(name: &'static str, message: String) -> annotate_snippets::Message<'a> {
    Level::NOTE.with_name(name).message(message)
}

fn on_the_device(rule: &Rule) -> String {
    let (_, outcome) = words::outcome(rule.outcome);
    let code = rule.code.map_or_else(String::new, |code| format!(" ({code})"));
    format!("{outcome}: {}{code}", rule.symptom)
}

fn evidence(rule: &Rule) -> String {
    let evidence = rule.evidence.iter();
    let told = evidence.map(|e| format!("{} [{}]", e.source, words::trust(e.trust)));
    told.collect::<Vec<_>>().join("; ")
}
