//! One region of an application at three times its load, under Waterfall and under the optimizer, side by side: `demo_te FILE PICTURE`.

use std::{error::Error, fs};

use fairmesh_sim::{
    application::{Measured, Planner, Scenario, WindowFigures, play},
    plot,
};

const PLANNERS: [Planner; 2] = [Planner::Waterfall, Planner::Optimizer];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, picture] = &arguments[..] else { return Err("usage: demo_te FILE PICTURE".into()) };
    let scenario: Scenario = serde_saphyr::from_str(&fs::read_to_string(file)?)?;
    let measured = PLANNERS.iter().map(|planner| play(&scenario, *planner, |_| {}));
    let measured = measured.collect::<Result<Vec<_>, _>>()?;
    println!("{}: {}\n", scenario.name, scenario.about.trim());
    print_windows(&measured);
    print_classes(&measured);
    print_sums(&measured);
    fs::write(picture, plot::latency_over_time(&scenario.name, &measured))?;
    println!("\nlatency over time: {picture}");
    Ok(())
}

fn print_windows(measured: &[Measured]) {
    println!("mean milliseconds of a client's call, by the end of the interval");
    println!("{:>12} {}", "SECONDS", columns(measured, |one| one.planner.to_uppercase()));
    let count = measured.iter().map(|one| one.windows.len()).min().unwrap_or_default();
    for at in 0..count {
        let mean = |window: &WindowFigures| match window.calls {
            0 => "-".to_owned(),
            _ => format!("{:.1}", window.mean_ms),
        };
        println!("{:>12.0} {}", measured[0].windows[at].at, columns(measured, |one| mean(&one.windows[at])));
    }
}

/// What the true model says of the last tables, and what was measured since the load rose.
fn print_classes(measured: &[Measured]) {
    println!("\nmilliseconds by the model / measured");
    println!("{:>12} {}", "CALL", columns(measured, |one| one.planner.to_uppercase()));
    for (at, class) in measured[0].classes.iter().enumerate() {
        let pair = |one: &Measured| {
            let class = &one.classes[at];
            format!("{:.1} / {:.1}", class.predicted_ms, class.mean_ms)
        };
        println!("{:>12} {}", class.to, columns(measured, pair));
    }
    println!(
        "{:>12} {}",
        "all",
        columns(measured, |one| format!("{:.1} / {:.1}", one.predicted_ms, one.mean_ms))
    );
}

fn print_sums(measured: &[Measured]) {
    println!();
    println!("{:>12} {}", "p99", columns(measured, |one| format!("{:.1} ms", one.p99_ms)));
    // The sum of no pairs of regions is -0.
    let egress = |one: &Measured| format!("${:.2}/h", one.egress * 3_600.0 + 0.0);
    println!("{:>12} {}", "egress", columns(measured, egress));
    println!(
        "{:>12} {}",
        "fullest pool",
        columns(measured, |one| format!("{:.0} %", one.greatest_load * 100.0))
    );
    println!("{:>12} {}", "not served", columns(measured, |one| (one.failed + one.dropped).to_string()));
}

fn columns(measured: &[Measured], cell: impl Fn(&Measured) -> String) -> String {
    measured.iter().map(|one| format!("{:>20}", cell(one))).collect()
}
