//! How many calls it takes to correct a model.

use fairmesh_model::{
    CallNode, Label, ServedPath, ServedRates, ServerRates, TrafficPlanner::Optimizer, TrafficReport,
    arith::Generator,
};

use super::world::{World, region, service};
use crate::{
    LatencyCorrection, cost_model::PoolCosts, model_adjustment::Adjustment, optimizer::ServiceModel,
};

/// The servers of `cart` in `eu`, whose calls have two classes and take the time that the model says, or a multiple.
struct Pool {
    adjustment: Adjustment,
    model: ServiceModel,
    generator: Generator,
    now_ms: u64,
}

/// Calls per second of a class, and the multiple of their time.
type Calls = (Option<Label>, usize, f64);

fn bulk() -> Option<Label> {
    Some("bulk".parse().unwrap())
}

impl Pool {
    fn new(model: &ServiceModel, seed: u64) -> Self {
        let mut model = model.clone();
        model.classes.extend(bulk());
        model.classes_cost.push(model.classes_cost[0]);
        Self { adjustment: Adjustment::default(), model, generator: Generator::new(seed), now_ms: 0 }
    }

    /// Times within a class are distributed exponentially.
    fn seconds(&mut self, seconds: usize, calls: &[Calls]) {
        for _ in 0..seconds {
            self.now_ms += 1_000;
            let sum = self.report(calls);
            self.adjustment.observe(&sum, &mut PoolCosts::default(), self.now_ms);
            self.adjustment.correct(&service("cart"), &mut self.model, self.now_ms);
        }
    }

    fn report(&mut self, calls: &[Calls]) -> TrafficReport {
        let mut report = TrafficReport::default();
        for (class, count, multiple) in calls {
            let mean_us = self.model.predict_ms(class.as_ref(), 0.35) * 1e3 * multiple;
            let draw = |generator: &mut Generator| -((generator.below(1_000_000) + 1) as f64 / 1e6).ln();
            let times: f64 = (0..*count).map(|_| mean_us * draw(&mut self.generator)).sum();
            let node = CallNode { service: service("cart"), class: class.clone() };
            let path = ServedPath { node, region: region("eu"), bucket: Some(3) };
            let rates = ServedRates { calls: *count as u64 * 1_000, exclusive_us: times as u64 };
            report.served.insert(path, rates);
        }
        let servers = ServerRates {
            servers: 1,
            counting: 1,
            measured: 1,
            received: calls.iter().map(|(_, count, _)| *count as u64 * 1_000).sum(),
            cpu_millicores: 1_400,
            limit_millicores: 4_000,
            ..ServerRates::default()
        };
        report.servers.insert((service("cart"), region("eu")), servers);
        report
    }

    fn correction(&self, class: &Option<Label>) -> Option<LatencyCorrection> {
        let all = self.adjustment.of_service(&service("cart")).latency;
        all.into_iter().find(|one| one.class == *class)
    }
}

fn model() -> ServiceModel {
    World::learned([Optimizer, Optimizer]).planner.optimizer().models[&service("cart")].clone()
}

#[test]
fn few_calls_that_are_slow_by_chance_hardly_ever_correct_the_model() {
    let (model, mut corrected) = (model(), 0);
    for seed in 1..=20 {
        let mut pool = Pool::new(&model, seed);
        for _ in 0..120 {
            pool.seconds(5, &[(None, 60, 1.0), (bulk(), 3, 1.0)]);
            corrected += usize::from(pool.correction(&bulk()).is_some());
            assert_eq!(pool.correction(&None), None, "seed {seed}");
        }
    }
    assert!(corrected < 24, "{corrected} batches of 2,400 with a correction");
}

#[test]
fn few_calls_that_are_slow_are_corrected_within_a_minute() {
    let mut pool = Pool::new(&model(), 1);
    pool.seconds(60, &[(None, 60, 1.0), (bulk(), 3, 3.0)]);
    let one = pool.correction(&bulk()).unwrap();
    assert!(one.calls >= 100.0 && (one.ms / one.predicted_ms - 2.0).abs() < 1.0, "{one:?}");
    assert_eq!(pool.correction(&None), None);
}

#[test]
fn class_that_changes_all_the_time_leaves_the_batches_of_others_alone() {
    let mut pool = Pool::new(&model(), 1);
    for at in 0..12 {
        let multiple = [1.0, 6.0][at / 2 % 2];
        pool.seconds(5, &[(None, 30, multiple), (bulk(), 60, 1.3)]);
    }
    let one = pool.correction(&bulk()).unwrap();
    assert!((one.ms / one.predicted_ms - 0.3).abs() < 0.1, "{one:?}");
}
