//! The drawing as an HTML page.

use super::scene::Section;
use super::svg::{drawing, escaped, style};

/// What moves, zooms, searches and shows.
const SCRIPT: &str = include_str!("page.js");
/// How the page around the drawing looks.
const STYLE: &str = include_str!("page.css");

/// A complete page. It may load nothing: names in a program cannot make it, even if they became markup.
pub(super) fn html(sections: &[Section], title: &str) -> String {
    let (body, width, height) = drawing(sections);
    let title = escaped(title);
    let links = sections.iter().enumerate().map(|(i, s)| {
        format!("<button data-section=\"section{i}\">{}</button>", escaped(&s.title))
    });
    let links: String = links.collect();
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'\">\n<title>{title}</title>\n<style>{STYLE}{}</style>\n</head>\n<body>\n\
         <header><strong>{title}</strong><nav>{links}</nav><input id=\"search\" type=\"search\" \
         placeholder=\"Search operations, names, shapes\"><output id=\"found\"></output>\
         <button id=\"fit\">Fit</button></header>\n\
         <svg id=\"drawing\" data-width=\"{width:.0}\" data-height=\"{height:.0}\">\n{body}</svg>\n\
         <pre id=\"details\" hidden></pre>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        style()
    )
}
