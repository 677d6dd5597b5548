use std::fmt::Write as _;

use super::{Plot, escape, number, ticks};

/// Size of the image, of the names on the left, and of a bar, in pixels.
const WIDTH: f64 = 960.0;
const NAMES: f64 = 200.0;
const VALUES: f64 = 80.0;
const BAR: f64 = 14.0;
const GAP: f64 = 12.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 50.0;

/// Groups of horizontal bars: each group has a name, and a value for each of `series` in its colour.
pub fn bars(title: &str, unit: &str, series: &[String], groups: &[(String, Vec<f64>)]) -> String {
    let group_height = BAR * series.len() as f64 + GAP;
    let bottom = TOP + group_height * groups.len() as f64;
    let height = bottom + BOTTOM;
    let most = groups.iter().flat_map(|(_, values)| values).copied().fold(f64::MIN_POSITIVE, f64::max);
    let pixels = |value: f64| value / most * (WIDTH - NAMES - VALUES);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\" fill=\"#333333\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">{}</text>\n\
         <text x=\"{NAMES}\" y=\"{}\">{}</text>\n",
        escape(title),
        TOP - 12.0,
        escape(unit)
    );
    for tick in ticks((0.0, most)) {
        let x = NAMES + pixels(tick);
        // Writing to a String cannot fail.
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {TOP}V{bottom}\" stroke=\"#dddddd\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 16.0,
            number(tick)
        );
    }
    for (n, (name, values)) in groups.iter().enumerate() {
        let top = TOP + group_height * n as f64;
        let middle = top + group_height / 2.0;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{middle:.1}\" text-anchor=\"end\">{}</text>",
            NAMES - 10.0,
            escape(name)
        );
        for (at, value) in values.iter().enumerate() {
            bar(&mut svg, (top + BAR * at as f64, pixels(*value)), Plot::colour(at), *value);
        }
    }
    legend(&mut svg, series, height);
    svg.push_str("</svg>\n");
    svg
}

/// A bar at `y` with this width, and its value next to it.
fn bar(svg: &mut String, (y, width): (f64, f64), colour: &str, value: f64) {
    let _ = writeln!(
        svg,
        "<rect x=\"{NAMES}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        BAR - 2.0,
        NAMES + width + 4.0,
        y + BAR - 4.0,
        number(value)
    );
}

fn legend(svg: &mut String, series: &[String], height: f64) {
    let mut x = NAMES;
    for (n, name) in series.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{}\">{}</text>",
            height - 20.0,
            Plot::colour(n),
            x + 16.0,
            height - 10.0,
            escape(name)
        );
        x += 36.0 + 7.0 * name.chars().count() as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_chart_group_has_name_and_bar_for_each_value() {
        let groups = [("a < b".to_owned(), vec![1.0, 2.0]), ("c".to_owned(), vec![0.0, 4.0])];
        let svg = bars("t", "u", &["x".into(), "y".into()], &groups);
        assert_eq!(svg.matches("<rect").count(), 1 + 4 + 2);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"), "{svg}");
    }
}
