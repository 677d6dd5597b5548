use fairmesh_model::{Invalid, Region};

use super::{Agents, Costs, Link, Machine, Scenario, Services, Writes};
use crate::scenario::{SimTime, within_range};

/// Maximum number of services or machines.
const MAX_COUNT: f64 = 10_000_000.0;
/// Maximum number of regions, and of layers of replicas.
const MAX_LAYERS: usize = 100;

impl Scenario {
    /// Checks what the types do not; the error's field is a path such as `agents.programs`.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.duration.nanos() == 0 || self.warmup >= self.duration {
            return Err(Invalid::new(
                "duration",
                format!("{} leaves nothing to measure after a warm-up of {}", self.duration, self.warmup),
                "make it longer than the warm-up",
            ));
        }
        if self.acknowledge < SimTime::micros(1000) {
            let problem = format!("{} is short", self.acknowledge);
            return Err(Invalid::new("acknowledge", problem, "write 1ms or more"));
        }
        self.services.validate().map_err(|e| e.within("services"))?;
        self.writes.validate().map_err(|e| e.within("writes"))?;
        self.costs.validate().map_err(|e| e.within("costs"))?;
        self.root.validate().map_err(|e| e.within("root"))?;
        self.check_regions()?;
        self.check_replicas()?;
        self.agents.validate().map_err(|e| e.within("agents"))?;
        for (i, event) in self.events.iter().enumerate() {
            event.action.validate(self).map_err(|e| e.within(format!("events[{i}].action")))?;
        }
        Ok(())
    }

    fn check_regions(&self) -> Result<(), Invalid> {
        within_range("regions", self.regions.len() as f64, 1.0, MAX_LAYERS as f64)?;
        for (i, region) in self.regions.iter().enumerate() {
            region.name.parse::<Region>().map_err(|e| e.within(format!("regions[{i}].name")))?;
            if self.regions[..i].iter().any(|other| other.name == region.name) {
                let problem = format!("there is another region '{}'", region.name);
                return Err(Invalid::new(
                    format!("regions[{i}].name"),
                    problem,
                    "give each a name of its own",
                ));
            }
        }
        Ok(())
    }

    fn check_replicas(&self) -> Result<(), Invalid> {
        within_range("replicas", self.replicas.len() as f64, 1.0, MAX_LAYERS as f64)?;
        for (i, layer) in self.replicas.iter().enumerate() {
            let within = |e: Invalid| e.within(format!("replicas[{i}]"));
            simulated(layer.count, layer.simulated).map_err(within)?;
            layer.link.validate().map_err(within)?;
            layer.machine.validate().map_err(|e| within(e.within("machine")))?;
        }
        Ok(())
    }
}

impl Services {
    fn validate(&self) -> Result<(), Invalid> {
        within_range("count", f64::from(self.count), 1.0, MAX_COUNT)?;
        within_range("endpointBytes", f64::from(self.endpoint_bytes), 128.0, 65_536.0)?;
        within_range("chunkBytes", f64::from(self.chunk_bytes), 256.0, 229_376.0)?;
        within_range("sharded", self.sharded, 0.0, 0.5)?;
        within_range("bytes", self.bytes, 0.0, 1e12)?;
        within_range("popularity", self.popularity, 0.0, 2.0)?;
        let first = self.sizes.first().map(|size| (size.servers, size.share));
        if first != Some((1.0, 1.0)) || self.sizes.len() < 2 {
            let hint = "begin with {servers: 1, share: 1} and go on to the largest";
            return Err(Invalid::new("sizes", "do not begin with every service having a server", hint));
        }
        for (i, pair) in self.sizes.windows(2).enumerate() {
            if !(pair[1].servers > pair[0].servers && pair[1].share < pair[0].share && pair[1].share > 0.0) {
                let field = format!("sizes[{}]", i + 1);
                return Err(Invalid::new(
                    field,
                    "does not follow the one before",
                    "go on to more servers, and a smaller share",
                ));
            }
        }
        within_range("sizes", self.sizes.last().map_or(0.0, |size| size.servers), 2.0, 1e6)
    }
}

impl Writes {
    fn validate(&self) -> Result<(), Invalid> {
        within_range("batches", self.batches, 0.001, 1e5)?;
        within_range("bytes", self.bytes, 1.0, 1e10)?;
        within_range("sharded", self.sharded, 0.0, 1000.0)?;
        within_range("together", f64::from(self.together), 1.0, 10_000.0)
    }
}

impl Costs {
    fn validate(&self) -> Result<(), Invalid> {
        for (name, span) in
            [("delivery", self.delivery), ("megabyte", self.megabyte), ("record", self.record)]
        {
            within_range(name, span.as_seconds(), 0.0, 10.0)?;
        }
        Ok(())
    }
}

impl Machine {
    fn validate(&self) -> Result<(), Invalid> {
        within_range("cores", self.cores, 0.001, 1024.0)?;
        within_range("gigabits", self.gigabits, 1e-6, 10_000.0)
    }
}

impl Link {
    fn validate(&self) -> Result<(), Invalid> {
        within_range("link.gigabits", self.gigabits, 1e-6, 10_000.0)
    }
}

impl Agents {
    fn validate(&self) -> Result<(), Invalid> {
        within_range("count", f64::from(self.count), 1.0, MAX_COUNT)?;
        simulated(self.count, self.simulated)?;
        self.link.validate()?;
        self.machine.validate().map_err(|e| e.within("machine"))?;
        within_range("programs", f64::from(self.programs), 1.0, 10_000.0)?;
        within_range("calls", f64::from(self.calls), 1.0, 1000.0)
    }
}

fn simulated(count: u32, simulated: Option<u32>) -> Result<(), Invalid> {
    within_range("count", f64::from(count), 1.0, MAX_COUNT)?;
    within_range("simulated", f64::from(simulated.unwrap_or(count)), 1.0, f64::from(count))
}
