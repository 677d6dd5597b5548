//! Compares whose calls are served in a shortage with `vectors/admission.json`. See the README there for how to change it.

#![allow(clippy::unwrap_used, reason = "what a test cannot do without has failed it")]

mod common;

use common::{Noise, World};
use fairmesh_te::WHOLE;
use serde_json::{Value, json};

#[path = "../../../../vectors/support.rs"]
#[allow(dead_code, reason = "no number here has 64 bits")]
mod support;

/// A shortage is planned for this load of each region.
const LOAD: f64 = 0.77;

/// Regions whose callers reach two others on each side, with this demand by region and class.
fn world(power: &[f64], demand: &[Vec<f64>]) -> World {
    let mut world = World::new(power.to_vec(), demand.to_vec());
    world.policy.rings.pop();
    world
}

/// What is decided for a demand, after rounds in which regions were half as loaded as they can be.
fn case(power: &[f64], demand: &[Vec<f64>]) -> Value {
    let calm = demand.iter().zip(power).map(|(rates, power)| {
        let times = (0.5 * power / rates.iter().sum::<f64>().max(1.0)).min(1.0);
        rates.iter().map(|rate| rate * times).collect()
    });
    let mut world = world(power, &calm.collect::<Vec<_>>());
    (0..3).for_each(|_| drop(world.round()));
    world.demand = demand.to_vec();
    (0..30).for_each(|_| drop(world.round()));
    let dropped = |source: usize, class: usize| world.state.tables().of(source, class).dropped;
    let classes = 0..world.policy.classes;
    let served = |class: usize| {
        let rate = |source: usize| {
            demand[source][class] * (1.0 - f64::from(dropped(source, class)) / f64::from(WHOLE))
        };
        (0..power.len()).map(rate).sum::<f64>().round()
    };
    let reach = |from: usize| (0..power.len()).filter(|to| from.abs_diff(*to) <= 2).collect::<Vec<_>>();
    let rows = (0..power.len())
        .map(|source| classes.clone().map(|class| dropped(source, class)).collect::<Vec<_>>());
    json!({
        "capacity": power.iter().map(|power| power * LOAD).collect::<Vec<_>>(),
        "reaches": (0..power.len()).map(reach).collect::<Vec<_>>(),
        "demand": demand,
        "served": classes.clone().map(served).collect::<Vec<_>>(),
        "dropped": rows.collect::<Vec<_>>(),
    })
}

#[test]
fn admission_by_class_matches_vectors() {
    let mut cases = vec![
        // The first region gets only important calls, the second only others.
        case(&[100.0; 2], &[vec![120.0, 0.0], vec![0.0, 100.0]]),
        // Calls of the third region have to make room in it for those of the first one, which reach no farther.
        case(
            &[100.0; 5],
            &[vec![250.0, 0.0], vec![0.0, 0.0], vec![0.0, 90.0], vec![0.0, 90.0], vec![0.0, 90.0]],
        ),
        // Not even all calls of the most important class are served.
        case(&[100.0; 3], &[vec![150.0, 50.0], vec![150.0, 50.0], vec![50.0, 50.0]]),
        // There is room for all.
        case(&[200.0; 3], &[vec![200.0, 100.0], vec![50.0, 20.0], vec![30.0, 10.0]]),
        // Three classes, and regions of different size.
        case(&[300.0, 100.0, 50.0], &[vec![100.0; 3], vec![40.0; 3], vec![30.0; 3]]),
    ];
    let mut random = Noise::new(1);
    for _ in 0..10 {
        let mut number = |from: f64, to: f64| (from + (to - from) * (random.uniform() + 1.0) / 2.0).round();
        let (regions, classes) = (number(2.0, 6.0) as usize, number(2.0, 3.0) as usize);
        let power: Vec<f64> = (0..regions).map(|_| number(50.0, 300.0)).collect();
        let demand: Vec<Vec<f64>> =
            power.iter().map(|power| (0..classes).map(|_| number(0.0, 1.2 * power)).collect()).collect();
        cases.push(case(&power, &demand));
    }
    support::check("admission.json", &[("cases", cases)]);
}
