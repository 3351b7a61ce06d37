//! Curves of runs as SVG or PNG: loss, learning rate and gradient norm over the steps.

use std::fs;
use std::io::Write;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use crate::metrics::Record;
use crate::{Result, TrainError};

/// Width and height of a drawing, in pixels.
const SIZE: (u32, u32) = (1000, 1100);
/// Beyond this size numbers are left out, as those are that are not finite: ranges of such overflow.
const GREATEST: f64 = 1e30;
/// The name under which the built-in font is drawn; what shows an SVG may have another one of this name.
const FONT: &str = "sans-serif";

/// A run by the name that the legend shows.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// What it measured.
    pub records: Vec<Record>,
}

type Curve = Vec<(f64, f64)>;

/// Draws `runs` into `path`, whose extension, `svg` or `png`, says as what. Numbers that are not finite, or
/// beyond 1e30, are left out.
///
/// # Errors
/// When the extension is another, there is nothing to draw, or the file cannot be written; what was at `path` is
/// then untouched.
pub fn draw(path: &Path, runs: &[Run]) -> Result<()> {
    let failed = |why: String| TrainError::file(path, why);
    if !runs.iter().any(|run| run.records.iter().any(|r| matches!(r, Record::Step(_)))) {
        let names = runs.iter().map(|run| &*run.name).collect::<Vec<_>>().join(", ");
        let why = format!("{names}: no step was measured, so there is nothing to draw");
        return Err(TrainError::Invalid(why));
    }
    // The font is part of the program, so that no system needs to have one.
    register_font(FONT, FontStyle::Normal, dejavu::sans::regular())
        .map_err(|_| failed("the built-in font is broken".to_owned()))?;
    // The library only draws into files, and over what is in them.
    let scratch = tempfile::tempdir().map_err(TrainError::io(path, "draw"))?;
    let drawing =
        scratch.path().join("drawing").with_extension(path.extension().unwrap_or_default());
    match path.extension().and_then(|e| e.to_str()) {
        Some("svg") => panels(&SVGBackend::new(&drawing, SIZE).into_drawing_area(), runs),
        Some("png") => panels(&BitMapBackend::new(&drawing, SIZE).into_drawing_area(), runs),
        _ => return Err(failed("is neither .svg nor .png".to_owned())),
    }
    .map_err(failed)?;
    let bytes = fs::read(&drawing).map_err(TrainError::io(path, "draw"))?;
    Ok(import::write_file(path, |out| out.write_all(&bytes))?)
}

fn panels<B: DrawingBackend>(area: &DrawingArea<B, Shift>, runs: &[Run]) -> Result<(), String> {
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    let (losses, rest) = area.split_vertically(SIZE.1 / 2);
    let rest = rest.split_evenly((2, 1));
    panel(&losses, "loss (nats a token)", runs, loss, evaluated)?;
    let none = |_: &Record| None;
    for (area, title, of) in [
        (&rest[0], "learning rate", learning_rate as fn(&Record) -> Option<(f64, f64)>),
        (&rest[1], "gradient norm", gradient_norm),
    ] {
        panel(area, title, runs, of, none)?;
    }
    area.present().map_err(|e| e.to_string())
}

fn loss(record: &Record) -> Option<(f64, f64)> {
    let Record::Step(s) = record else { return None };
    Some((s.step as f64, s.loss))
}

fn learning_rate(record: &Record) -> Option<(f64, f64)> {
    let Record::Step(s) = record else { return None };
    Some((s.step as f64, s.learning_rate))
}

fn gradient_norm(record: &Record) -> Option<(f64, f64)> {
    let Record::Step(s) = record else { return None };
    Some((s.step as f64, s.gradient_norm))
}

fn evaluated(record: &Record) -> Option<(f64, f64)> {
    let Record::Evaluation(e) = record else { return None };
    Some((e.step as f64, e.loss))
}

/// One diagram: a thin line for each run, and points on a thick one for what `marked` finds.
fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    runs: &[Run],
    thin: impl Fn(&Record) -> Option<(f64, f64)>,
    marked: impl Fn(&Record) -> Option<(f64, f64)>,
) -> Result<(), String> {
    let error = |e: DrawingAreaErrorKind<B::ErrorType>| e.to_string();
    let finite = |p: &(f64, f64)| p.0.abs() <= GREATEST && p.1.abs() <= GREATEST;
    let lines: Vec<Curve> =
        runs.iter().map(|r| r.records.iter().filter_map(&thin).filter(finite).collect()).collect();
    let points: Vec<Curve> = runs
        .iter()
        .map(|r| r.records.iter().filter_map(&marked).filter(finite).collect())
        .collect();
    let all = || lines.iter().chain(&points).flatten().copied();
    let range = |of: fn((f64, f64)) -> f64| {
        let ends = (f64::INFINITY, f64::NEG_INFINITY);
        let (low, high) = all().map(of).fold(ends, |(low, high), v| (low.min(v), high.max(v)));
        // A single value still needs a range around it.
        let margin = ((high - low) * 0.03).max(high.abs() * 1e-3).max(1e-12);
        if low > high { 0.0..1.0 } else { low - margin..high + margin }
    };
    let heights = range(|p| p.1);
    // Below this a tick is zero but for rounding.
    let nothing = (heights.end - heights.start) * 1e-9;
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 18))
        .margin(12)
        .x_label_area_size(32)
        .y_label_area_size(72)
        .build_cartesian_2d(range(|p| p.0), heights)
        .map_err(error)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .label_style((FONT, 13))
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| if y.abs() < nothing { "0".to_owned() } else { short(*y) })
        .draw()
        .map_err(error)?;
    let mut named = false;
    for (i, run) in runs.iter().enumerate() {
        let color = Palette99::pick(i).to_rgba();
        let sample = move |(x, y): (i32, i32)| {
            PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2))
        };
        let faint = if points[i].is_empty() { color } else { color.mix(0.4) };
        let line = LineSeries::new(lines[i].iter().copied(), faint.stroke_width(1));
        let drawn = chart.draw_series(line).map_err(error)?;
        if points[i].is_empty() {
            drawn.label(&*run.name).legend(sample);
        } else {
            let thick = LineSeries::new(points[i].iter().copied(), color.stroke_width(2));
            let drawn = chart.draw_series(thick).map_err(error)?;
            drawn.label(format!("{}: training (thin), held out", run.name)).legend(sample);
            let dots = points[i].iter().map(|&p| Circle::new(p, 3, color.filled()));
            chart.draw_series(dots).map_err(error)?;
            named = true;
        }
    }
    if named || runs.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .label_font((FONT, 13))
            .draw()
            .map_err(error)?;
    }
    Ok(())
}

/// At most four digits.
fn short(y: f64) -> String {
    let size = y.abs();
    if size == 0.0 || (1e-2..1e4).contains(&size) { format!("{y:.3}") } else { format!("{y:.1e}") }
}
