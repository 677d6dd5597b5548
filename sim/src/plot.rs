//! Plots as SVG, written by hand, because they consist only of lines and texts.

mod application;
mod bars;
mod forest;
mod propagation;
mod regions;

use std::fmt::Write as _;

pub use application::{latency_over_load, latency_over_time};
pub use bars::bars;
pub use forest::forest;
pub use propagation::propagation;
pub use regions::regions;

use crate::{Scenario, SimulationResult};

/// Size of the image and margins of the plot, in pixels.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 50.0;
const BOTTOM: f64 = 60.0;
/// Maximum number of lines, since more would hide each other. With more servers, every n-th is drawn.
const MAX_LINES: usize = 200;
/// Colours of server groups, distinguishable with colour blindness (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

/// An axis of a plot.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// Value at the start.
    pub from: f64,
    /// Value at the end.
    pub to: f64,
    /// Label of the axis.
    pub label: &'a str,
}

/// A plot with axes.
#[derive(Debug)]
pub struct Plot {
    svg: String,
    x: (f64, f64),
    y: (f64, f64),
}

impl Axis<'_> {
    /// Creates an axis in seconds from 0.
    fn seconds(to: f64) -> Self {
        Self { from: 0.0, to, label: "seconds" }
    }
}

impl Plot {
    /// Creates a plot with about ten ticks on each axis.
    pub fn new(title: &str, x: Axis<'_>, y: Axis<'_>) -> Self {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let mut plot = Self { svg, x: (x.from, x.to), y: (y.from, y.to) };
        plot.text((LEFT, 24.0), "start", &format!("<tspan font-size=\"16\">{}</tspan>", escape(title)));
        plot.axes(x.label, y.label);
        plot
    }

    fn axes(&mut self, x_label: &str, y_label: &str) {
        let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
        for value in ticks(self.y) {
            let (_, y) = self.position(self.x.0, value);
            self.stroke(&[(LEFT, y), (right, y)], "#dddddd", 1.0, 1.0);
            self.text((LEFT - 6.0, y + 4.0), "end", &number(value));
        }
        for value in ticks(self.x) {
            let (x, _) = self.position(value, self.y.0);
            self.stroke(&[(x, bottom), (x, bottom + 4.0)], "#666666", 1.0, 1.0);
            self.text((x, bottom + 18.0), "middle", &number(value));
        }
        self.stroke(&[(LEFT, TOP), (LEFT, bottom), (right, bottom)], "#666666", 1.0, 1.0);
        self.text(((LEFT + right) / 2.0, bottom + 36.0), "middle", &escape(x_label));
        self.text((LEFT, TOP - 8.0), "start", &escape(y_label));
    }

    /// Converts a value to pixels. Values beyond the axes are drawn at the ends of the axes.
    fn position(&self, x: f64, y: f64) -> (f64, f64) {
        let part = |value: f64, (from, to): (f64, f64)| ((value - from) / (to - from)).clamp(0.0, 1.0);
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        (LEFT + part(x, self.x) * (right - LEFT), bottom - part(y, self.y) * (bottom - TOP))
    }

    /// Draws a line, which is interrupted at NaN.
    pub fn line(
        &mut self,
        points: impl IntoIterator<Item = (f64, f64)>,
        colour: &str,
        width: f64,
        opacity: f64,
    ) {
        let mut piece = Vec::new();
        for (x, y) in points {
            match y.is_nan() {
                true => self.stroke(&std::mem::take(&mut piece), colour, width, opacity),
                false => piece.push(self.position(x, y)),
            }
        }
        self.stroke(&piece, colour, width, opacity);
    }

    /// Draws a legend: the names of lines with their colours.
    pub fn legend(&mut self, entries: &[(String, &str)]) {
        let mut x = LEFT;
        for (name, colour) in entries {
            self.stroke(&[(x, HEIGHT - 12.0), (x + 16.0, HEIGHT - 12.0)], colour, 3.0, 1.0);
            self.text((x + 20.0, HEIGHT - 8.0), "start", &escape(name));
            x += 36.0 + 7.0 * name.chars().count() as f64;
        }
    }

    /// The n-th colour.
    pub fn colour(n: usize) -> &'static str {
        COLOURS[n % COLOURS.len()]
    }

    /// Returns the finished SVG.
    pub fn finish(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }

    fn stroke(&mut self, pixels: &[(f64, f64)], colour: &str, width: f64, opacity: f64) {
        if pixels.len() < 2 {
            return;
        }
        let points: Vec<String> = pixels.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" \
             stroke-opacity=\"{opacity}\"/>",
            points.join(" ")
        );
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, text: &str) {
        let _ = writeln!(
            self.svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#333333\">{text}</text>"
        );
    }
}

/// Plots the utilisation of every server over time, with the mean and the 99th percentile.
pub fn utilisation(scenario: &Scenario, result: &SimulationResult) -> String {
    let end = scenario.duration.as_seconds();
    let highest = result.timeline.iter().flat_map(|(_, sample)| sample).fold(0.0_f32, |a, &b| a.max(b));
    let top = (f64::from(highest) * 10.0).ceil().max(1.0) / 10.0;
    let report = &result.report;
    let cv = report.cv.map_or_else(String::new, |cv| format!(", variation {cv:.3}"));
    let title = format!("{}: mean {:.1} %{cv}", scenario.name, report.mean_utilisation * 100.0);
    let label = "utilisation of each server, in percent";
    let mut plot = Plot::new(&title, Axis::seconds(end), Axis { from: 0.0, to: top * 100.0, label });
    let percent = |value: f32| f64::from(value) * 100.0;
    let mut legend = Vec::new();
    let mut first = 0;
    let all: u32 = scenario.servers.iter().map(|group| group.count).sum();
    let every = (all as usize).div_ceil(MAX_LINES);
    for (n, group) in scenario.servers.iter().enumerate() {
        let colour = Plot::colour(n);
        let members = first..first + group.count as usize;
        first = members.end;
        for server in members.step_by(every) {
            let timeline = result.timeline.iter().map(|(at, sample)| (*at, percent(sample[server])));
            plot.line(timeline, colour, 1.0, 0.35);
        }
        legend.push((group.name.clone(), colour));
    }
    for (name, colour, at) in [("mean", "#000000", None), ("p99", "#aa0000", Some(0.99))] {
        let timeline = result.timeline.iter().map(|(time, sample)| (*time, percent(level(sample, at))));
        plot.line(timeline, colour, 2.0, 1.0);
        legend.push((name.to_owned(), colour));
    }
    plot.legend(&legend);
    plot.finish()
}

/// The mean of a sample, or a quantile, excluding servers that are down.
fn level(sample: &[f32], quantile: Option<f64>) -> f32 {
    let mut present: Vec<f32> = sample.iter().copied().filter(|value| !value.is_nan()).collect();
    if present.is_empty() {
        return f32::NAN;
    }
    match quantile {
        None => present.iter().sum::<f32>() / present.len() as f32,
        Some(quantile) => {
            present.sort_by(f32::total_cmp);
            let rank = (present.len() as f64 * quantile).ceil() as usize;
            present[rank.clamp(1, present.len()) - 1]
        }
    }
}

/// Round numbers between the ends of an axis.
fn ticks((from, to): (f64, f64)) -> Vec<f64> {
    let rough = ((to - from) / 8.0).max(f64::MIN_POSITIVE);
    let mut step = 1e-6;
    for factor in [2.0, 2.5, 2.0].iter().cycle() {
        if step >= rough {
            break;
        }
        step *= factor;
    }
    let first = (from / step).ceil() as i64;
    (first..).map(|n| n as f64 * step).take_while(|value| *value <= to + step / 1e6).collect()
}

/// Formats a number without trailing zeros.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plot_axis_ticks_are_round_and_few() {
        assert_eq!(ticks((0.0, 100.0)), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        for to in [0.013, 1.0, 7.0, 180.0, 3600.0] {
            let ticks = ticks((0.0, to));
            assert!((4..=9).contains(&ticks.len()), "{to}: {ticks:?}");
        }
    }

    #[test]
    fn plot_lines_break_at_nan_and_names_are_escaped() {
        let mut plot = Plot::new("a < b", Axis::seconds(1.0), Axis { from: 0.0, to: 1.0, label: "y" });
        let before = plot.svg.matches("<polyline").count();
        plot.line([(0.0, 0.0), (0.2, 0.1), (0.5, f64::NAN), (0.6, 0.1), (1.0, 0.2)], "#000000", 1.0, 1.0);
        assert_eq!(plot.svg.matches("<polyline").count(), before + 2);
        assert!(plot.finish().contains("a &lt; b"));
    }
}
