//! Cost of calls in each pool.

use fairmesh_console::output::{self, ago, decimal};
use fairmesh_wire::v1::{ClassFit, PoolFit};
use serde_json::{Value, json};

use super::MICROS;
use crate::traffic::status::class;

/// Factor from one to percent.
const PERCENT: f64 = 100.0;
/// Microseconds per second.
const SECOND: f64 = 1e6;

/// A table of the pools with a fit, after an empty line. Empty if there is no fit.
pub(super) fn table(pools: &[PoolFit]) -> String {
    let rows: Vec<Vec<String>> =
        pools.iter().flat_map(|pool| pool.classes.iter().map(|fit| row(pool, fit))).collect();
    match rows.is_empty() {
        true => String::new(),
        false => format!(
            "\n{}",
            output::table(
                &["SERVICE", "REGION", "CLASS", "CPU EACH", "ERROR", "WAIT × CPU", "BASE", "ERROR", "AGE"],
                &rows
            )
        ),
    }
}

fn row(pool: &PoolFit, fit: &ClassFit) -> Vec<String> {
    let dash = || "-".to_owned();
    let ms = |micros: f64| decimal(micros / MICROS, 2) + " ms";
    let percent = |share: f64| decimal(share * PERCENT, 1) + " %";
    let latency = |value: String| if pool.sensitivity.is_some() { value } else { dash() };
    vec![
        pool.service.clone(),
        pool.region.clone(),
        class(&fit.class),
        ms(fit.work_us),
        if fit.work_error_us.is_finite() { format!("±{}", ms(fit.work_error_us)) } else { dash() },
        pool.sensitivity.map_or_else(dash, |sensitivity| decimal(sensitivity / SECOND, 2)),
        fit.base_us.map_or_else(dash, ms),
        latency(percent(pool.latency_error)),
        latency(ago(pool.shifted_age_ms)),
    ]
}

/// The fits of a pool as JSON.
pub(super) fn document(pool: &PoolFit) -> Value {
    let class = |fit: &ClassFit| {
        json!({
            "class": Some(&fit.class).filter(|class| !class.is_empty()),
            "cpuMicros": fit.work_us,
            "cpuErrorMicros": Some(fit.work_error_us).filter(|error| error.is_finite()),
            "baseMicros": fit.base_us,
        })
    };
    json!({
        "service": pool.service,
        "region": pool.region,
        "classes": pool.classes.iter().map(class).collect::<Vec<_>>(),
        "backgroundCores": pool.background_cores,
        "cpuError": pool.work_error,
        "cpuAgeMs": pool.work_error.map(|_| pool.work_age_ms),
        "waitPerCpu": pool.sensitivity.map(|sensitivity| sensitivity / SECOND),
        "latencyError": pool.sensitivity.map(|_| pool.latency_error),
        "latencyAgeMs": pool.sensitivity.map(|_| pool.latency_age_ms),
        "shiftedAgeMs": pool.sensitivity.map(|_| pool.shifted_age_ms),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_costs_without_latency_fit_are_shown_as_dashes() {
        let mut pool = PoolFit {
            service: "shop/cart".into(),
            region: "eu".into(),
            classes: vec![ClassFit { work_us: 1_500.0, work_error_us: f64::INFINITY, ..ClassFit::default() }],
            work_error: Some(0.02),
            ..PoolFit::default()
        };
        let last = |pool: &PoolFit| table(std::slice::from_ref(pool)).lines().last().unwrap().to_owned();
        let cells = |line: String| {
            line.split("  ")
                .map(|cell| cell.trim().to_owned())
                .filter(|cell| !cell.is_empty())
                .collect::<Vec<_>>()
        };
        assert_eq!(cells(last(&pool)), ["shop/cart", "eu", "-", "1.50 ms", "-", "-", "-", "-", "-"]);
        (pool.sensitivity, pool.latency_error, pool.shifted_age_ms) = (Some(1.25e6), 0.031, 4_000);
        pool.classes[0].base_us = Some(2_000.0);
        pool.classes[0].work_error_us = 20.0;
        let expected = ["shop/cart", "eu", "-", "1.50 ms", "±0.02 ms", "1.25", "2.00 ms", "3.1 %", "4.0 s"];
        assert_eq!(cells(last(&pool)), expected);
        assert_eq!(table(&[]), "");
        assert_eq!(document(&pool)["waitPerCpu"], 1.25);
    }
}
