use super::{Axis, Plot};
use crate::replica_tree::Report;

/// The longest propagation time of a change to each layer, per second.
pub fn propagation(report: &Report) -> String {
    let layers = &report.layers[1.min(report.layers.len())..];
    let end = layers.iter().map(|layer| layer.timeline.len()).max().unwrap_or(1) as f64;
    let longest =
        layers.iter().flat_map(|layer| &layer.timeline).map(|(_, worst)| *worst).fold(1.0, f64::max);
    let title = format!("{}: the longest propagation time to each layer", report.scenario);
    let y = Axis { from: 0.0, to: longest / 1e3, label: "seconds from its commit" };
    let mut plot = Plot::new(&title, Axis::seconds(end), y);
    let mut legend = Vec::new();
    for (n, layer) in layers.iter().enumerate() {
        let colour = Plot::colour(n);
        let timeline = layer.timeline.iter().enumerate();
        plot.line(timeline.map(|(second, (_, worst))| (second as f64 + 1.0, worst / 1e3)), colour, 2.0, 0.8);
        legend.push((layer.name.clone(), colour));
    }
    plot.legend(&legend);
    plot.finish()
}
