/// Calls per second by source region, class and destination region; those without a destination are dropped.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flows {
    pub(crate) regions: usize,
    pub(crate) classes: usize,
    rates: Vec<f64>,
    /// By source and class.
    pub(crate) dropped: Vec<f64>,
}

impl Flows {
    pub(crate) fn new(regions: usize, classes: usize) -> Self {
        let rows = regions * classes;
        Self { regions, classes, rates: vec![0.0; rows * regions], dropped: vec![0.0; rows] }
    }

    pub(crate) fn row(&self, source: usize, class: usize) -> usize {
        source * self.classes + class
    }

    pub(crate) fn get(&self, source: usize, class: usize, to: usize) -> f64 {
        self.rates[self.row(source, class) * self.regions + to]
    }

    pub(crate) fn add(&mut self, source: usize, class: usize, to: usize, rate: f64) {
        let at = self.row(source, class) * self.regions + to;
        // Subtracting what was added before may leave a tiny negative rest.
        self.rates[at] = (self.rates[at] + rate).max(0.0);
    }

    /// Divides this many calls per second of a source and class as other flows do.
    pub(crate) fn set_shares(&mut self, (source, class): (usize, usize), rate: f64, of: &Self) {
        let (shares, dropped) = of.shares(source, class);
        let row = self.row(source, class);
        for (mine, share) in self.rates[row * self.regions..][..self.regions].iter_mut().zip(shares) {
            *mine = rate * share;
        }
        self.dropped[row] = rate * dropped;
    }

    /// Takes so many calls of a source and class from a region back to where there are fewer than before, and to each as its part
    /// of what is missing.
    pub(crate) fn take_back(
        &mut self,
        (source, class): (usize, usize),
        (from, rate): (usize, f64),
        before: &Self,
    ) {
        let row = self.row(source, class);
        let missing = |to: usize| (before.get(source, class, to) - self.get(source, class, to)).max(0.0);
        let missing: Vec<f64> = (0..self.regions).map(missing).collect();
        let served_again = (before.dropped[row] - self.dropped[row]).max(0.0);
        let total = missing.iter().sum::<f64>() + served_again;
        if total <= 0.0 {
            return;
        }
        let part = rate.min(total) / total;
        self.add(source, class, from, -rate.min(total));
        missing.iter().enumerate().for_each(|(to, missing)| self.add(source, class, to, missing * part));
        self.dropped[row] += served_again * part;
    }

    /// Calls per second that arrive at each region.
    pub(crate) fn arrivals(&self) -> Vec<f64> {
        let mut arrivals = vec![0.0; self.regions];
        for row in self.rates.chunks(self.regions) {
            for (sum, rate) in arrivals.iter_mut().zip(row) {
                *sum += rate;
            }
        }
        arrivals
    }

    /// Whether a source makes calls of a class.
    pub(crate) fn has_calls(&self, source: usize, class: usize) -> bool {
        let row = self.row(source, class);
        self.dropped[row] > 0.0
            || self.rates[row * self.regions..][..self.regions].iter().any(|rate| *rate > 0.0)
    }

    /// The shares of one source and class, and the dropped share; they sum to 1. Without demand all stay at home.
    pub(crate) fn shares(&self, source: usize, class: usize) -> (Vec<f64>, f64) {
        let row = self.row(source, class);
        let rates = &self.rates[row * self.regions..][..self.regions];
        let total: f64 = rates.iter().sum::<f64>() + self.dropped[row];
        if total <= 0.0 {
            let home = |to| if to == source { 1.0 } else { 0.0 };
            return ((0..self.regions).map(home).collect(), 0.0);
        }
        (rates.iter().map(|rate| rate / total).collect(), self.dropped[row] / total)
    }
}
