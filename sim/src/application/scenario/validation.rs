use std::collections::{BTreeMap, BTreeSet};

use fairmesh_model::{Invalid, Ring};

use super::{Call, Operation, Scenario};
use crate::scenario::{rings_policy, within_range};

/// Maximum number of services, of operations, and of entries of `clients`.
const MAX_COUNT: f64 = 1_000.0;
const MAX_CORES: f64 = 1e6;
const MAX_RATE: f64 = 1e9;
const MAX_BYTES: f64 = 1e12;

impl Scenario {
    /// Checks what the types cannot express; the error's field is a path such as `operations[1].calls[0][0].to`.
    ///
    /// # Errors
    /// The first field that is not valid.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.topology.validate().map_err(|e| e.within("topology"))?;
        within_range("topology.regions", self.topology.regions.len() as f64, 1.0, MAX_COUNT)?;
        within_range("services", self.services.len() as f64, 1.0, MAX_COUNT)?;
        within_range("operations", self.operations.len() as f64, 1.0, MAX_COUNT)?;
        within_range("clients", self.clients.len() as f64, 1.0, MAX_COUNT)?;
        within_range("waterfall", self.waterfall, 0.05, 1.0)?;
        let policy = rings_policy(&self.rings, 1)?;
        if policy.rings[0].ring != Ring::Region {
            let hint = "write 'region' first: a table gives each region its own share";
            return Err(Invalid::new("rings[0]", "includes several regions", hint));
        }
        self.check_services()?;
        for (i, operation) in self.operations.iter().enumerate() {
            self.check_operation(operation).map_err(|e| e.within(format!("operations[{i}]")))?;
        }
        for (i, clients) in self.clients.iter().enumerate() {
            let within = |e: Invalid| e.within(format!("clients[{i}]"));
            self.check_target("to", &clients.to).map_err(within)?;
            self.check_regions("rates", &clients.rates, MAX_RATE).map_err(within)?;
            let mut regions = clients.rate_over_time.keys();
            regions.try_for_each(|region| self.check_region("rateOverTime", region)).map_err(within)?;
            if self.clients[..i].iter().any(|other| other.to == clients.to) {
                return Err(within(twice("to", &clients.to)));
            }
        }
        self.check_cycles()?;
        self.play.validate(self).map_err(|e| e.within("play"))?;
        self.check_variants()
    }

    fn check_services(&self) -> Result<(), Invalid> {
        let mut names = BTreeSet::new();
        for (i, service) in self.services.iter().enumerate() {
            let within = |e: Invalid| e.within(format!("services[{i}]"));
            if !names.insert(&service.name) {
                return Err(within(twice("name", &service.name)));
            }
            self.check_regions("cores", &service.cores, MAX_CORES).map_err(within)?;
            if !service.cores.values().any(|cores| *cores > 0.0) {
                let hint = "give it cores in one region at least, or remove it";
                return Err(within(Invalid::new("cores", "there are no servers", hint)));
            }
        }
        let mut names = BTreeSet::new();
        let repeated = self.operations.iter().position(|operation| !names.insert(&operation.name));
        repeated.map_or(Ok(()), |i| {
            Err(twice("name", &self.operations[i].name).within(format!("operations[{i}]")))
        })
    }

    fn check_operation(&self, operation: &Operation) -> Result<(), Invalid> {
        if self.service(&operation.service).is_none() {
            let problem = format!("there is no service '{}'", operation.service);
            return Err(Invalid::new("service", problem, "name one of services"));
        }
        for (region, [first, end]) in &operation.records {
            self.check_region("records", region)?;
            if first >= end {
                let hint = "write the first record and the one after the last";
                return Err(Invalid::new("records", format!("has no record for '{region}'"), hint));
            }
        }
        for (stage, calls) in operation.calls.iter().enumerate() {
            for (i, call) in calls.iter().enumerate() {
                self.check_call(call).map_err(|e| e.within(format!("calls[{stage}][{i}]")))?;
            }
        }
        Ok(())
    }

    fn check_call(&self, call: &Call) -> Result<(), Invalid> {
        self.check_target("to", &call.to)?;
        within_range("times", call.times, 0.0, 1e4)?;
        within_range("request", call.request, 0.0, MAX_BYTES)?;
        within_range("response", call.response, 0.0, MAX_BYTES)
    }

    pub(super) fn check_target(&self, field: &str, name: &str) -> Result<(), Invalid> {
        match self.operation(name) {
            Some(_) => Ok(()),
            None => {
                Err(Invalid::new(field, format!("there is no operation '{name}'"), "name one of operations"))
            }
        }
    }

    pub(super) fn check_region(&self, field: &str, name: &str) -> Result<(), Invalid> {
        match self.regions().contains(&name) {
            true => Ok(()),
            false => {
                let hint = "name one of topology.regions";
                Err(Invalid::new(field, format!("there is no region '{name}'"), hint))
            }
        }
    }

    pub(super) fn check_regions(
        &self,
        field: &str,
        values: &BTreeMap<String, f64>,
        most: f64,
    ) -> Result<(), Invalid> {
        for (region, value) in values {
            self.check_region(field, region)?;
            within_range(&format!("{field}.{region}"), *value, 0.0, most)?;
        }
        Ok(())
    }

    /// Refuses cycles: repeatedly marks operations whose callees are all marked; unmarked ones call each other.
    fn check_cycles(&self) -> Result<(), Invalid> {
        let mut is_done = vec![false; self.operations.len()];
        for _ in 0..self.operations.len() {
            for (at, operation) in self.operations.iter().enumerate() {
                let mut callees =
                    operation.calls.iter().flatten().filter_map(|call| self.operation(&call.to));
                is_done[at] = callees.all(|callee| is_done[callee]);
            }
        }
        let Some(mut at) = is_done.iter().position(|done| !done) else { return Ok(()) };
        // After as many steps as there are operations, the walk is in the cycle.
        for _ in 0..self.operations.len() {
            let mut callees =
                self.operations[at].calls.iter().flatten().filter_map(|call| self.operation(&call.to));
            at = callees.find(|callee| !is_done[*callee]).unwrap_or(at);
        }
        let problem = format!("'{}' ends up calling itself", self.operations[at].name);
        Err(Invalid::new(format!("operations[{at}].calls"), problem, "remove a call of the cycle"))
    }
}

fn twice(field: &str, name: &str) -> Invalid {
    Invalid::new(field, format!("'{name}' is there twice"), "give each a name of its own")
}
