use std::fmt::Write as _;

use super::{Plot, escape, number, ticks};

/// Size of the image, of the names on the left, and of a row, in pixels.
const WIDTH: f64 = 960.0;
const NAMES: f64 = 200.0;
const ROW: f64 = 18.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 30.0;
/// Gap between the two panels.
const GAP: f64 = 30.0;

/// A row per name, with two values around 1 and their errors, in two panels side by side.
pub fn forest(title: &str, heads: &[String; 2], rows: &[(String, [(f64, f64); 2])]) -> String {
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#333333\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">{}</text>\n",
        escape(title)
    );
    for (n, (name, _)) in rows.iter().enumerate() {
        let y = middle(n) + 4.0;
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\">{}</text>",
            NAMES - 10.0,
            escape(name)
        );
    }
    let width = (WIDTH - NAMES - 2.0 * GAP) / 2.0;
    for (n, head) in heads.iter().enumerate() {
        let left = NAMES + n as f64 * (width + GAP);
        let values: Vec<(f64, f64)> = rows.iter().map(|(_, values)| values[n]).collect();
        Field { left, width, axis: axis(&values) }.sample(&mut svg, head, &values);
    }
    svg.push_str("</svg>\n");
    svg
}

fn middle(row: usize) -> f64 {
    TOP + ROW * (row as f64 + 0.5)
}

/// An axis around 1 that covers the values.
fn axis(values: &[(f64, f64)]) -> (f64, f64) {
    let reach = |(value, off): &(f64, f64)| (value - 1.0).abs() + off;
    let reach = values.iter().map(reach).filter(|reach| reach.is_finite()).fold(0.005, f64::max) * 1.1;
    (1.0 - reach, 1.0 + reach)
}

struct Field {
    left: f64,
    width: f64,
    axis: (f64, f64),
}

impl Field {
    fn place(&self, value: f64) -> f64 {
        self.left + (value - self.axis.0) / (self.axis.1 - self.axis.0) * self.width
    }

    fn sample(&self, svg: &mut String, head: &str, values: &[(f64, f64)]) {
        let bottom = TOP + ROW * values.len() as f64;
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", self.left, TOP - 12.0, escape(head));
        for tick in ticks(self.axis) {
            let x = self.place(tick);
            let colour = if (tick - 1.0).abs() < 1e-9 { "#666666" } else { "#dddddd" };
            let _ = writeln!(
                svg,
                "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"{colour}\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                number(tick)
            );
        }
        let drawn = values.iter().enumerate().filter(|(_, (value, off))| (value + off).is_finite());
        for (row, (value, off)) in drawn {
            let (y, colour) = (middle(row), Plot::colour(0));
            let (from, at, to) = (self.place(value - off), self.place(*value), self.place(value + off));
            let _ = writeln!(
                svg,
                "<path d=\"M{from:.1} {y}H{to:.1}\" stroke=\"{colour}\" stroke-width=\"2\"/>\
                 <circle cx=\"{at:.1}\" cy=\"{y}\" r=\"4\" fill=\"{colour}\"/>"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forest_plot_row_has_name_and_dot_for_each_finite_value() {
        let rows = [
            ("a < b".to_owned(), [(0.9, 0.02), (1.1, 0.1)]),
            ("c".to_owned(), [(1.0, 0.0), (f64::NAN, 0.0)]),
        ];
        let svg = forest("t", &["x".into(), "y".into()], &rows);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"), "{svg}");
    }
}
