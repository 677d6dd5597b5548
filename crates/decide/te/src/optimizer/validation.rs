use thiserror::Error;

use super::{
    pool_cost::EXTENDED,
    problem::{Caller, Edge, Preferences, Problem, ServicePools},
};
use crate::rings_policy::MAX_REGIONS;

/// Numbers above this are a fault of a fit or a report; the bound keeps sums finite.
const MAX_NUMBER: f64 = 1e15;
/// Given shares sum to 1 within this.
const SHARES_TOLERANCE: f64 = 1e-6;
/// Maximum kinks of a service: thresholds of rings.
const MAX_KINKS: usize = 16;

/// Why there is no plan. The last one stays in force.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProblemError {
    /// Lists do not have the length that the numbers of regions, services and nodes demand.
    #[error("{0} does not fit the numbers of regions, services and nodes")]
    Size(&'static str),
    /// A number is negative, not finite or out of range.
    #[error("{what} {at} has an impossible number; check the fit or the report that it comes from")]
    Number {
        /// What has the number.
        what: &'static str,
        /// Its position.
        at: usize,
    },
    /// A service is called and has no servers.
    #[error("service {0} is called and has servers in no region; start some, or remove its edges")]
    Unplaced(usize),
    /// Given shares do not sum to 1, or lead to regions without servers.
    #[error("the given shares of edge {0} do not sum to 1 over regions that have servers")]
    GivenShares(usize),
    /// Calls in a cycle cause at least as many further calls, or so nearly as many that their rates do not settle.
    #[error("the calls of node {0} multiply without end; check the calls per request of its cycle")]
    LoopGain(usize),
}

fn is_number(value: f64) -> bool {
    (0.0..=MAX_NUMBER).contains(&value)
}

fn check(is_valid: bool, what: &'static str, at: usize) -> Result<(), ProblemError> {
    if is_valid { Ok(()) } else { Err(ProblemError::Number { what, at }) }
}

impl Problem {
    /// Checks sizes and ranges.
    ///
    /// # Errors
    /// The first field that is not valid.
    pub fn validate(&self) -> Result<(), ProblemError> {
        let pairs = self.regions * self.regions;
        if self.regions == 0 || self.regions > MAX_REGIONS {
            return Err(ProblemError::Size("the number of regions"));
        }
        if self.round_trips.len() != pairs || self.egress_prices.len() != pairs {
            return Err(ProblemError::Size("a matrix of regions"));
        }
        for (at, (trip, price)) in self.round_trips.iter().zip(&self.egress_prices).enumerate() {
            check(is_number(*trip) && is_number(*price), "pair of regions", at)?;
        }
        validate_preferences(&self.preferences)?;
        self.services.iter().enumerate().try_for_each(|(at, service)| self.validate_service(at, service))?;
        for (at, node) in self.nodes.iter().enumerate() {
            if node.service >= self.services.len() {
                return Err(ProblemError::Size("the service of a node"));
            }
            check(is_number(node.work) && is_number(node.latency), "node", at)?;
        }
        self.validate_corrections()?;
        self.edges.iter().enumerate().try_for_each(|(at, edge)| self.validate_edge(at, edge))
    }

    /// No call takes less than no time.
    fn validate_corrections(&self) -> Result<(), ProblemError> {
        if ![0, self.nodes.len() * self.regions].contains(&self.corrections.len()) {
            return Err(ProblemError::Size("the list of corrections"));
        }
        let mut places = (0..self.corrections.len()).map(|at| (at / self.regions, at % self.regions));
        places.try_for_each(|(node, region)| {
            check(is_number(self.latency(node, region)), "the correction of node", node)
        })
    }

    fn validate_service(&self, at: usize, service: &ServicePools) -> Result<(), ProblemError> {
        if service.capacity.len() != self.regions || service.kinks.len() > MAX_KINKS {
            return Err(ProblemError::Size("a service"));
        }
        let are_numbers = service.capacity.iter().all(|capacity| is_number(*capacity));
        let is_fit = is_number(service.sensitivity) && is_number(service.error);
        check(are_numbers && is_fit, "service", at)?;
        let mut least = 0.0;
        for kink in &service.kinks {
            let is_valid = (least..self.preferences.ceiling).contains(&kink.load);
            check(is_valid && is_number(kink.surcharge), "kinks of service", at)?;
            least = kink.load;
        }
        Ok(())
    }

    fn validate_edge(&self, at: usize, edge: &Edge) -> Result<(), ProblemError> {
        let node = self.nodes.get(edge.callee).ok_or(ProblemError::Size("the callee of an edge"))?;
        match &edge.caller {
            Caller::Clients { demand, .. } if demand.len() != self.regions => {
                return Err(ProblemError::Size("the demand of an edge"));
            }
            Caller::Node { node, .. } if *node >= self.nodes.len() => {
                return Err(ProblemError::Size("the caller of an edge"));
            }
            Caller::Clients { demand, .. } => {
                check(demand.iter().all(|rate| is_number(*rate)), "edge", at)?;
            }
            Caller::Node { calls, .. } => check(is_number(*calls), "edge", at)?,
        }
        check(is_number(edge.request_bytes) && is_number(edge.response_bytes), "edge", at)?;
        if self.placed(node.service).next().is_none() {
            return Err(ProblemError::Unplaced(node.service));
        }
        match self.are_shares(node.service, &edge.given) {
            true => Ok(()),
            false => Err(ProblemError::GivenShares(at)),
        }
    }

    fn are_shares(&self, service: usize, given: &[Vec<f64>]) -> bool {
        let is_row = |row: &Vec<f64>| {
            let placed = |(region, share): (usize, &f64)| *share == 0.0 || self.is_placed(service, region);
            row.len() == self.regions
                && row.iter().all(|share| *share >= 0.0)
                && (row.iter().sum::<f64>() - 1.0).abs() < SHARES_TOLERANCE
                && row.iter().enumerate().all(placed)
        };
        [0, 1, self.regions].contains(&given.len()) && given.iter().all(is_row)
    }
}

fn validate_preferences(preferences: &Preferences) -> Result<(), ProblemError> {
    let ceiling = preferences.ceiling;
    let is_cap = preferences.egress_cap.is_none_or(is_number);
    check(preferences.dollars_per_ms >= 1e-12 && is_cap, "the price of latency or the cap on egress", 0)?;
    check(ceiling > 0.0 && ceiling <= EXTENDED, "the ceiling", 0)?;
    check(preferences.admission > 0.0 && preferences.admission <= ceiling, "the load of admission", 0)
}
