use super::*;

const CLASSES: [(&str, f64, f64); 2] = [("light", 0.001, 3_000.0), ("heavy", 0.010, 500.0)];
/// Microseconds for each second of CPU: one and a half times the work itself.
const SENSITIVITY: f64 = 1.5e6;

fn class(name: &str) -> Option<Label> {
    Some(name.parse().unwrap())
}

fn work() -> BTreeMap<Option<Label>, f64> {
    CLASSES.iter().map(|(name, work, _)| (class(name), *work)).collect()
}

/// A thousand calls of each class at these utilisations, whose bases are higher by `more_us`.
fn observe(pool: &mut PoolLatency, buckets: &[u8], more_us: f64) {
    for bucket in buckets {
        let utilisation = (f64::from(*bucket) + 0.5) / 10.0;
        for (name, work, base) in CLASSES {
            let mean_us = SENSITIVITY * work / (1.0 - utilisation) + base + more_us;
            let (calls, exclusive_us) = (1_000.0, 1_000.0 * mean_us);
            pool.observe(LatencyObservation { class: class(name), bucket: *bucket, calls, exclusive_us });
        }
    }
}

fn base(pool: &PoolLatency, name: &str) -> f64 {
    pool.fit().unwrap().bases[&class(name)]
}

#[test]
fn latency_fit_finds_sensitivity_of_pool_and_base_of_each_class() {
    let mut pool = PoolLatency::default();
    observe(&mut pool, &[1, 3], 0.0);
    pool.update(&work(), 1_000);
    assert_eq!(pool.fit(), None, "two utilisations");
    observe(&mut pool, &[5, 7], 0.0);
    pool.update(&work(), 2_000);
    let fit = pool.fit().unwrap();
    assert!((fit.sensitivity / SENSITIVITY - 1.0).abs() < 1e-9, "{fit:?}");
    assert!((base(&pool, "light") - 3_000.0).abs() < 1e-6 && (base(&pool, "heavy") - 500.0).abs() < 1e-6);
    assert!(fit.error < 1e-9 && fit.fitted_at_ms == 2_000, "{fit:?}");
    let predicted = fit.predict_us(&class("heavy"), 0.010, 0.8).unwrap();
    assert!((predicted - 75_500.0).abs() < 1e-3, "{predicted}");
    assert_eq!(fit.predict_us(&None, 0.01, 0.8), None);
}

#[test]
fn partial_data_shifts_latency_fit_and_complete_data_renews_it() {
    let mut pool = PoolLatency::default();
    observe(&mut pool, &[1, 3, 5, 7], 0.0);
    pool.update(&work(), 1_000);
    // A dependency within the process slows down, at low load.
    observe(&mut pool, &[1, 3], 2_000.0);
    pool.update(&work(), 2_000);
    assert!((base(&pool, "light") - 5_000.0).abs() < 1e-6, "{pool:?}");
    let fit = pool.fit().unwrap();
    assert!((fit.sensitivity / SENSITIVITY - 1.0).abs() < 1e-9, "the slope stays: {fit:?}");
    assert_eq!((fit.fitted_at_ms, fit.changed_at_ms), (1_000, 2_000));
    pool.update(&work(), 2_500);
    assert!((base(&pool, "light") - 5_000.0).abs() < 1e-6, "the same data shifts nothing more");
    observe(&mut pool, &[5, 7], 2_000.0);
    pool.update(&work(), 3_000);
    assert_eq!(pool.fit().unwrap().fitted_at_ms, 3_000);
    assert!(pool.fresh.is_empty(), "fitted data is not used again");
}

#[test]
fn latency_bases_of_classes_without_new_data_shift_with_pool() {
    let mut pool = PoolLatency::default();
    observe(&mut pool, &[1, 3, 5], 0.0);
    pool.update(&work(), 1_000);
    let (light, heavy) = (base(&pool, "light"), base(&pool, "heavy"));
    let mean_us = SENSITIVITY * 0.001 / 0.85 + light + 700.0;
    let (calls, exclusive_us) = (100.0, 100.0 * mean_us);
    pool.observe(LatencyObservation { class: class("light"), bucket: 1, calls, exclusive_us });
    pool.update(&work(), 2_000);
    assert!((base(&pool, "light") - light - 700.0).abs() < 1e-6, "{pool:?}");
    assert!((base(&pool, "heavy") - heavy - 700.0).abs() < 1e-6, "{pool:?}");
}

#[test]
fn latency_fit_ignores_backlog_of_full_servers() {
    let mut pool = PoolLatency::default();
    observe(&mut pool, &[1, 3, 5, 7], 0.0);
    pool.update(&work(), 1_000);
    let before = pool.fit().cloned();
    let (calls, exclusive_us) = (1_000.0, 1_000.0 * 3e6);
    pool.observe(LatencyObservation { class: class("light"), bucket: 9, calls, exclusive_us });
    pool.update(&work(), 2_000);
    assert_eq!(pool.fit().cloned(), before);
}

#[test]
fn latency_fit_of_noisy_data_has_error_and_no_negative_values() {
    let mut pool = PoolLatency::default();
    // Faster under load, as with a cache that warms up.
    for (bucket, mean_us) in [(1, 9_000.0), (4, 5_000.0), (7, 4_000.0)] {
        let (calls, exclusive_us) = (100.0, 100.0 * mean_us);
        pool.observe(LatencyObservation { class: None, bucket, calls, exclusive_us });
    }
    pool.observe(LatencyObservation { class: None, bucket: 2, calls: f64::NAN, exclusive_us: 1.0 });
    pool.update(&[(None, 0.002)].into(), 1_000);
    let fit = pool.fit().unwrap();
    assert_eq!(fit.sensitivity, 0.0);
    assert!((fit.bases[&None] - 6_000.0).abs() < 1e-6 && fit.error > 0.3, "{fit:?}");
    // A class whose time grows faster than any base allows has none.
    let mut pool = PoolLatency::default();
    for (bucket, mean_us) in [(1, 100.0), (5, 4_000.0), (8, 12_000.0)] {
        let (calls, exclusive_us) = (100.0, 100.0 * mean_us);
        pool.observe(LatencyObservation { class: None, bucket, calls, exclusive_us });
    }
    pool.update(&[(None, 0.002)].into(), 1_000);
    let fit = pool.fit().unwrap();
    assert!(fit.bases[&None] == 0.0 && fit.sensitivity > 0.0, "{fit:?}");
}
