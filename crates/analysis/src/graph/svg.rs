//! The drawing as SVG.

use std::fmt::Write;

use super::family::Family;
use super::scene::{Node, PADDING, SMALL, Scene, Section, TITLE};

/// Free space around the drawing and between functions.
const MARGIN: f64 = 40.0;
/// Height of a function's heading.
const HEADING: f64 = 64.0;
/// Height of the legend.
const LEGEND: f64 = 46.0;
/// Width of a legend's entry.
const ENTRY: f64 = 118.0;

/// A complete SVG file.
pub(super) fn standalone(sections: &[Section]) -> String {
    let (body, width, height) = drawing(sections);
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" \
         width=\"{width:.0}\" height=\"{height:.0}\" viewBox=\"0 0 {width:.0} {height:.0}\">\n\
         <style>{}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n",
        style()
    )
}

/// The rules for the drawing's classes.
pub(super) fn style() -> String {
    let mut css = String::from(
        "text{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1f2933}\
         .t{font-size:13px;font-weight:600}.s{font-size:10.3px;fill:#4a5563}\
         .h{font-size:22px;font-weight:700}.l{font-size:10px;fill:#55606e;paint-order:stroke;stroke:#fff;stroke-width:3px}\
         .e{fill:none;stroke:#9aa5b1;stroke-width:1.2}.b{fill:#fff;fill-opacity:.75;stroke:#c9c2a3;stroke-dasharray:4 3}\
         .mark rect{stroke-dasharray:3 2}.mark{opacity:.85}",
    );
    for family in Family::OPERATIONS.into_iter().chain([Family::Input, Family::Output]) {
        let (fill, border) = family.colours();
        let name = family.name();
        // Writing to a string does not fail.
        let _ = write!(css, ".{name}>rect{{fill:{fill};stroke:{border};stroke-width:1.2}}");
    }
    css.push_str(".input>.t,.output>.t{fill:#fff}.input>.s,.output>.s{fill:#dfe5ec}");
    css
}

/// The elements of the drawing, and its width and height.
pub(super) fn drawing(sections: &[Section]) -> (String, f64, f64) {
    let mut out = String::new();
    let used = |family: &Family| sections.iter().any(|s| uses(&s.scene, *family));
    let families: Vec<Family> = Family::OPERATIONS.into_iter().filter(used).collect();
    let legend = ENTRY * families.len() as f64;
    for (i, family) in families.into_iter().enumerate() {
        let x = MARGIN + ENTRY * i as f64;
        let name = family.name();
        let _ = writeln!(
            out,
            "<g class=\"{name}\"><rect x=\"{x:.1}\" y=\"{MARGIN:.1}\" width=\"14\" height=\"14\" rx=\"3\"/>\
             <text class=\"s\" x=\"{:.1}\" y=\"{:.1}\">{name}</text></g>",
            x + 20.0,
            MARGIN + 11.0
        );
    }
    let (mut x, top) = (MARGIN, MARGIN + LEGEND);
    let mut height = top;
    for (i, section) in sections.iter().enumerate() {
        let _ = writeln!(
            out,
            "<g class=\"section\" id=\"section{i}\"><text class=\"h\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\
             <text class=\"s\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
            top + 20.0,
            escaped(&section.title),
            top + 38.0,
            escaped(&section.subtitle)
        );
        scene(&section.scene, (x, top + HEADING), &mut out);
        out.push_str("</g>\n");
        let heading = section.title.chars().count().max(section.subtitle.chars().count()) as f64;
        x += section.scene.layout.width.max(heading * 13.3) + 2.0 * MARGIN;
        height = height.max(top + HEADING + section.scene.layout.height);
    }
    (out, (x - MARGIN).max(legend + 2.0 * MARGIN), height + MARGIN)
}

/// Whether a box of that family is drawn.
fn uses(scene: &Scene, family: Family) -> bool {
    let inside = |node: &Node| node.blocks.iter().any(|(_, scene)| uses(scene, family));
    scene.nodes.iter().any(|node| node.family == family || inside(node))
}

fn scene(scene: &Scene, (x, y): (f64, f64), out: &mut String) {
    for path in &scene.layout.paths {
        let _ = write!(out, "<path class=\"e\" d=\"");
        curve(path, (x, y), out);
        out.push_str("\"/>\n");
    }
    for (node, &(cx, top)) in scene.nodes.iter().zip(&scene.layout.places) {
        draw(node, (x + cx - node.size.0 / 2.0, y + top), out);
    }
    for (edge, path) in scene.edges.iter().zip(&scene.layout.paths) {
        let (end, beside) = if edge.several { (path.last(), -6.0) } else { (path.first(), 14.0) };
        if let (Some(label), Some(&(px, py))) = (&edge.label, end) {
            let _ = writeln!(
                out,
                "<text class=\"l\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + px + 5.0,
                y + py + beside,
                escaped(label)
            );
        }
    }
}

/// A path through the points that leaves and reaches each one vertically.
fn curve(points: &[(f64, f64)], (x, y): (f64, f64), out: &mut String) {
    let mut points = points.iter().map(|p| (p.0 + x, p.1 + y));
    let Some(mut last) = points.next() else { return };
    let _ = write!(out, "M{:.1} {:.1}", last.0, last.1);
    for next in points {
        if (next.0 - last.0).abs() < 0.05 {
            let _ = write!(out, "V{:.1}", next.1);
        } else {
            let middle = (last.1 + next.1) / 2.0;
            let _ = write!(
                out,
                "C{:.1} {middle:.1} {:.1} {middle:.1} {:.1} {:.1}",
                last.0, next.0, next.0, next.1
            );
        }
        last = next;
    }
}

fn draw(node: &Node, (x, y): (f64, f64), out: &mut String) {
    let (width, height) = node.size;
    let mark = if node.mark { " mark" } else { "" };
    let _ = write!(
        out,
        "<g class=\"node {}{mark}\"><title>{}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
         height=\"{height:.1}\" rx=\"5\"/>",
        node.family.name(),
        escaped(&node.details)
    );
    let middle = x + width / 2.0;
    let mut line = y + TITLE.1 - 2.0;
    let _ = write!(
        out,
        "<text class=\"t\" text-anchor=\"middle\" x=\"{middle:.1}\" y=\"{line:.1}\">{}</text>",
        escaped(&node.title)
    );
    for text in &node.lines {
        line += SMALL.1;
        let _ = write!(
            out,
            "<text class=\"s\" text-anchor=\"middle\" x=\"{middle:.1}\" y=\"{line:.1}\">{}</text>",
            escaped(text)
        );
    }
    out.push_str("</g>\n");
    let mut left = x + PADDING;
    for (title, block) in &node.blocks {
        let own = block.layout.width + 2.0 * PADDING;
        let top = line + PADDING;
        let _ = writeln!(
            out,
            "<rect class=\"b\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{own:.1}\" height=\"{:.1}\" rx=\"4\"/>\
             <text class=\"s\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            y + height - PADDING - top,
            left + PADDING,
            top + SMALL.1,
            escaped(title)
        );
        scene(block, (left + PADDING, top + TITLE.1 + PADDING / 2.0), out);
        left += own + PADDING;
    }
}

/// The text as markup takes it: nothing in it is markup, and what XML does not allow is replaced.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_become_markup() {
        assert_eq!(escaped("<a b='c'>&\"\u{1}"), "&lt;a b=&#39;c&#39;&gt;&amp;&quot;\u{fffd}");
    }
}
