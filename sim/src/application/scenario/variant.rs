//! Variants of an application: other load, fewer servers, other events.

use std::collections::BTreeMap;

use fairmesh_model::Invalid;
use serde::{Deserialize, Serialize};

use super::{PoolEvent, Scenario};
use crate::scenario::{RegionFault, within_range};

/// How a variant differs from its application.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Variant {
    /// Name, appended to that of the application.
    pub name: String,
    /// Factors on the rates, by called operation.
    #[serde(default)]
    pub times: BTreeMap<String, f64>,
    /// Factors on the rates, by region. The load of these regions does not change over time.
    #[serde(default)]
    pub load: BTreeMap<String, f64>,
    /// Pools that do not exist in the variant.
    #[serde(default)]
    pub without: Vec<Pool>,
    /// Additional events.
    #[serde(default)]
    pub events: Vec<PoolEvent>,
    /// Additional report faults.
    #[serde(default)]
    pub faults: Vec<RegionFault>,
}

/// The servers of a service in one region.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Pool {
    /// The service.
    pub service: String,
    /// The region.
    pub region: String,
}

impl Scenario {
    /// The application and its variants, each as an application.
    pub fn variants(&self) -> Vec<Self> {
        let base = Self { variants: Vec::new(), ..self.clone() };
        let variants = self.variants.iter().map(|variant| variant.of(&base));
        std::iter::once(base.clone()).chain(variants).collect()
    }

    /// The variant with this name; `None` if there is none.
    pub fn variant(&self, name: &str) -> Option<Self> {
        let variant = self.variants.iter().find(|variant| variant.name == name)?;
        Some(variant.of(&Self { variants: Vec::new(), ..self.clone() }))
    }

    pub(super) fn check_variants(&self) -> Result<(), Invalid> {
        for (i, variant) in self.variants.iter().enumerate() {
            let within = |e: Invalid| e.within(format!("variants[{i}]"));
            variant.check(self).map_err(within)?;
            self.variant(&variant.name).map_or(Ok(()), |variant| variant.validate()).map_err(within)?;
        }
        Ok(())
    }
}

impl Variant {
    fn of(&self, base: &Scenario) -> Scenario {
        let mut scenario = base.clone();
        scenario.name = format!("{}-{}", base.name, self.name);
        for clients in &mut scenario.clients {
            let of_operation = self.times.get(&clients.to).copied().unwrap_or(1.0);
            for (region, rate) in &mut clients.rates {
                *rate *= of_operation * self.load.get(region).copied().unwrap_or(1.0);
            }
            clients.rate_over_time.retain(|region, _| !self.load.contains_key(region));
        }
        for pool in &self.without {
            for service in scenario.services.iter_mut().filter(|service| service.name == pool.service) {
                service.cores.remove(&pool.region);
            }
        }
        scenario.play.events.extend(self.events.iter().cloned());
        scenario.play.faults.extend(self.faults.iter().cloned());
        scenario
    }

    fn check(&self, base: &Scenario) -> Result<(), Invalid> {
        for (operation, times) in &self.times {
            base.check_target("times", operation)?;
            within_range(&format!("times.{operation}"), *times, 0.0, 1e3)?;
        }
        base.check_regions("load", &self.load, 1e3)?;
        for (i, pool) in self.without.iter().enumerate() {
            let service = base.service(&pool.service).map(|at| &base.services[at]);
            if service.is_none_or(|service| !service.cores.contains_key(&pool.region)) {
                let problem = format!("'{}' has no cores in '{}'", pool.service, pool.region);
                let hint = "name a service and a region where it has cores";
                return Err(Invalid::new(format!("without[{i}]"), problem, hint));
            }
        }
        Ok(())
    }
}
