use std::collections::BTreeMap;

use fairmesh_model::Label;

use super::linear_solver::solve;

/// The half-life of an interval's weight.
const HALF_LIFE_MS: f64 = 300_000.0;
/// Intervals, by weight, that a fit needs at least for each class.
const MIN_INTERVALS: f64 = 4.0;
/// What intervals before a rescaling count from then on, and the weight that is left to them at least: few intervals make no fit.
const RESCALED_WEIGHT: f64 = 0.25;
const LEAST_WEIGHT: f64 = 40.0;
/// The share of the common work per call that every class is pulled to, relative to the class's own evidence: classes whose rates
/// rise and fall together cannot be told apart, and then cost the same.
const RIDGE: f64 = 1e-4;
/// The most classes, and calls without one.
const MAX_CLASSES: usize = fairmesh_model::MAX_TRAFFIC_CLASSES + 1;

/// CPU per call of each class of a pool, by regression over report intervals: CPU in use is background work and the sum over
/// classes of rate × work (SLATE, 4.2, measures two points instead, and needs a quiet service for it).
///
/// Normal equations with decayed weights: no interval is kept, and each costs a few hundred multiplications.
#[derive(Clone, Debug, Default)]
pub struct WorkRegression {
    classes: Vec<Option<Label>>,
    /// Sums of products of the inputs: background, then classes.
    products: Vec<Vec<f64>>,
    /// Sums of inputs × CPU.
    with_cpu: Vec<f64>,
    cpu_squared: f64,
    weight: f64,
    observed_at_ms: Option<u64>,
}

/// The work of each class.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkFit {
    /// By class.
    pub classes: BTreeMap<Option<Label>, ClassWork>,
    /// CPU without calls, in cores.
    pub background: f64,
    /// The root of the mean squared error, relative to the mean CPU.
    pub error: f64,
    /// When the last interval was observed, on the caller's clock.
    pub at_ms: u64,
}

/// CPU of one call, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassWork {
    /// The estimate; not negative.
    pub seconds: f64,
    /// Its standard error; infinite where the other classes' rates determine that of this class.
    pub error: f64,
}

impl WorkRegression {
    /// Counts an interval: calls per second of each class, and CPU in use in cores. `now_ms` is of a clock that only advances. Intervals
    /// with numbers that are negative or not finite are ignored, and classes beyond the sixteenth count as one.
    pub fn observe(&mut self, rates: &BTreeMap<Option<Label>, f64>, cpu_cores: f64, now_ms: u64) {
        let is_valid = |number: f64| number.is_finite() && number >= 0.0;
        if !is_valid(cpu_cores) || !rates.values().all(|rate| is_valid(*rate)) {
            return;
        }
        if self.with_cpu.is_empty() {
            self.grow();
        }
        let elapsed = self.observed_at_ms.replace(now_ms).map_or(0, |at| now_ms.saturating_sub(at));
        self.decay((-(elapsed as f64) / HALF_LIFE_MS).exp2());
        let mut input = vec![0.0; self.classes.len() + 1];
        input[0] = 1.0;
        for (class, rate) in rates {
            let position = self.position(class);
            if input.len() <= position {
                input.resize(position + 1, 0.0);
            }
            input[position] += rate;
        }
        for (row, x) in input.iter().enumerate() {
            self.with_cpu[row] += x * cpu_cores;
            input.iter().enumerate().for_each(|(column, y)| self.products[row][column] += x * y);
        }
        self.cpu_squared += cpu_cores * cpu_cores;
        self.weight += 1.0;
    }

    /// Multiplies the CPU of all intervals by a factor, and lets them count less: what classes cost in relation to each other stays known,
    /// and new intervals soon prevail.
    pub fn rescale(&mut self, factor: f64) {
        self.with_cpu.iter_mut().for_each(|sum| *sum *= factor);
        self.cpu_squared *= factor * factor;
        self.decay((LEAST_WEIGHT / self.weight).clamp(RESCALED_WEIGHT, 1.0));
    }

    /// The fit; `None` without enough intervals, or where no call was observed.
    pub fn fit(&self) -> Option<WorkFit> {
        let mut active: Vec<usize> =
            (0..self.with_cpu.len()).filter(|at| self.products[*at][*at] > 0.0).collect();
        if active.len() < 2 || self.weight < MIN_INTERVALS * active.len() as f64 {
            return None;
        }
        let common = self.common_work()?;
        // Classes that would come out negative cost nothing; the background likewise.
        let solution = loop {
            let solution = self.solve(&active, common)?;
            match active.iter().zip(&solution).position(|(_, value)| *value < 0.0) {
                Some(negative) => drop(active.remove(negative)),
                None => break active.iter().copied().zip(solution).collect::<BTreeMap<_, _>>(),
            }
        };
        let variance = self.squared_error(&solution) / (self.weight - solution.len() as f64).max(1.0);
        let work = |(position, class): (usize, &Option<Label>)| {
            let seconds = solution.get(&(position + 1)).copied().unwrap_or_default();
            (class.clone(), ClassWork { seconds, error: self.standard_error(position + 1, variance) })
        };
        let mean = self.with_cpu[0] / self.weight;
        Some(WorkFit {
            classes: self.classes.iter().enumerate().map(work).collect(),
            background: solution.get(&0).copied().unwrap_or_default(),
            error: if mean > 0.0 { variance.sqrt() / mean } else { 0.0 },
            at_ms: self.observed_at_ms.unwrap_or_default(),
        })
    }

    /// The mean CPU of a call of any class.
    fn common_work(&self) -> Option<f64> {
        let calls: f64 = self.products[0][1..].iter().sum();
        (calls > 0.0).then(|| self.with_cpu[0] / calls)
    }

    fn solve(&self, active: &[usize], common: f64) -> Option<Vec<f64>> {
        let ridge = |at: usize| if at == 0 { 0.0 } else { self.products[at][at] * RIDGE };
        let row = |at: &usize| {
            let value =
                |other: &usize| self.products[*at][*other] + if at == other { ridge(*at) } else { 0.0 };
            active.iter().map(value).collect::<Vec<_>>()
        };
        let matrix: Vec<_> = active.iter().map(row).collect();
        let right: Vec<_> = active.iter().map(|at| self.with_cpu[*at] + ridge(*at) * common).collect();
        solve(&matrix, &right)
    }

    /// The sum of squared differences between the CPU and what the fit says.
    fn squared_error(&self, solution: &BTreeMap<usize, f64>) -> f64 {
        let linear: f64 = solution.iter().map(|(at, value)| value * self.with_cpu[*at]).sum();
        let square = |(at, value): (&usize, &f64)| {
            solution.iter().map(|(other, more)| value * more * self.products[*at][*other]).sum::<f64>()
        };
        (self.cpu_squared - 2.0 * linear + solution.iter().map(square).sum::<f64>()).max(0.0)
    }

    /// The error of one coefficient, from the inverse of the normal equations.
    fn standard_error(&self, position: usize, variance: f64) -> f64 {
        let all: Vec<usize> = (0..self.with_cpu.len()).filter(|at| self.products[*at][*at] > 0.0).collect();
        let Some(own) = all.iter().position(|at| *at == position) else { return f64::INFINITY };
        let matrix: Vec<Vec<f64>> =
            all.iter().map(|at| all.iter().map(|other| self.products[*at][*other]).collect()).collect();
        let unit: Vec<f64> = (0..all.len()).map(|at| if at == own { 1.0 } else { 0.0 }).collect();
        solve(&matrix, &unit).map_or(f64::INFINITY, |column| (variance * column[own].max(0.0)).sqrt())
    }

    fn decay(&mut self, factor: f64) {
        self.products.iter_mut().flatten().chain(&mut self.with_cpu).for_each(|sum| *sum *= factor);
        self.cpu_squared *= factor;
        self.weight *= factor;
    }

    /// The input of a class.
    fn position(&mut self, class: &Option<Label>) -> usize {
        let known = self.classes.iter().position(|known| known == class);
        let position = known.unwrap_or_else(|| {
            if self.classes.len() < MAX_CLASSES {
                self.classes.push(class.clone());
                self.grow();
            }
            self.classes.len() - 1
        });
        position + 1
    }

    fn grow(&mut self) {
        self.with_cpu.push(0.0);
        let size = self.with_cpu.len();
        self.products.resize(size, Vec::new());
        self.products.iter_mut().for_each(|row| row.resize(size, 0.0));
    }
}

#[cfg(test)]
mod tests {
    use fairmesh_model::arith::Generator;

    use super::*;

    fn class(name: &str) -> Option<Label> {
        (!name.is_empty()).then(|| name.parse().unwrap())
    }

    /// A number from 0 to 1.
    fn draw(generator: &mut Generator) -> f64 {
        generator.below(1_000_001) as f64 / 1e6
    }

    /// A minute of intervals of a second, with half a core of background and 2 % of noise.
    fn observed(works: &[(&str, f64)], rate: impl Fn(usize, &mut Generator) -> f64) -> WorkRegression {
        let (mut regression, mut generator) = (WorkRegression::default(), Generator::new(7));
        for second in 0..120 {
            let drawn = |at: usize| rate(at, &mut generator);
            let rates: Vec<f64> = (0..works.len()).map(drawn).collect();
            let cpu = 0.5 + works.iter().zip(&rates).map(|((_, work), rate)| work * rate).sum::<f64>();
            let cpu = cpu * (0.98 + 0.04 * draw(&mut generator));
            let rates = works.iter().zip(rates).map(|((name, _), rate)| (class(name), rate)).collect();
            regression.observe(&rates, cpu, second * 1_000);
        }
        regression
    }

    #[test]
    fn work_regression_finds_cost_of_each_class_with_error() {
        let works = [("", 0.002), ("bulk", 0.020), ("search", 0.007)];
        let fit = observed(&works, |_, generator| 50.0 + 150.0 * draw(generator)).fit().unwrap();
        for (name, expected) in works {
            let ClassWork { seconds, error } = fit.classes[&class(name)];
            assert!((seconds - expected).abs() < 4.0 * error, "{name}: {seconds} ± {error}");
            assert!(error < 0.001, "{name}: {error}");
        }
        assert!(fit.error > 0.005 && fit.error < 0.03, "{fit:?}");
        assert_eq!(fit.at_ms, 119_000);
    }

    #[test]
    fn classes_with_proportional_rates_get_equal_cost_and_large_error() {
        let (mut regression, mut generator) = (WorkRegression::default(), Generator::new(3));
        for second in 0..60 {
            let rate = 50.0 + 100.0 * draw(&mut generator);
            let rates = [(class("a"), rate), (class("b"), rate)].into();
            regression.observe(&rates, rate * 0.03, second * 1_000);
        }
        let fit = regression.fit().unwrap();
        for name in ["a", "b"] {
            let ClassWork { seconds, error } = fit.classes[&class(name)];
            assert!((seconds - 0.015).abs() < 1e-3, "{fit:?}");
            assert!(error > 1.0 || error.is_infinite() || fit.error < 1e-3, "{fit:?}");
        }
    }

    #[test]
    fn fitted_work_is_never_negative_and_invalid_intervals_are_ignored() {
        let mut regression = observed(&[("", 0.01), ("free", 0.0)], |_, generator| 100.0 * draw(generator));
        for cpu in [f64::NAN, -1.0, f64::INFINITY] {
            regression.observe(&[(None, 10.0)].into(), cpu, 120_000);
        }
        regression.observe(&[(None, f64::NAN)].into(), 1.0, 120_000);
        let fit = regression.fit().unwrap();
        assert!(fit.classes.values().all(|work| work.seconds >= 0.0), "{fit:?}");
        assert!((fit.classes[&None].seconds - 0.01).abs() < 0.001, "{fit:?}");
    }

    #[test]
    fn work_regression_has_no_fit_from_few_intervals_or_no_calls() {
        let mut regression = WorkRegression::default();
        assert_eq!(regression.fit(), None);
        (0..100).for_each(|second| regression.observe(&BTreeMap::new(), 0.3, second * 1_000));
        assert_eq!(regression.fit(), None, "only background");
        let mut regression = WorkRegression::default();
        (0..3).for_each(|second| regression.observe(&[(None, 10.0)].into(), 0.3, second * 1_000));
        assert_eq!(regression.fit(), None, "three intervals");
    }
}
