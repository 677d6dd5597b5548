use fairmesh_model::{Invalid, Ring};

/// Maximum number of regions of one plan.
pub const MAX_REGIONS: usize = 256;
/// Maximum number of traffic classes of one service.
pub const MAX_CLASSES: usize = 8;

/// A ring with the load up to which its regions are used before the next ring opens (ServiceRouter §3.4.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadRing {
    /// The regions.
    pub ring: Ring,
    /// Utilisation, above 0 and at most 1.
    pub load: f64,
}

/// How calls of one service are planned.
#[derive(Clone, Debug, PartialEq)]
pub struct RingsPolicy {
    /// Rings, nearest first; loads ascend. Above the load of the last one, calls are dropped,
    /// those of the lowest class first.
    pub rings: Vec<LoadRing>,
    /// Number of traffic classes; class 0 is the most important, the last one is moved and dropped first.
    pub classes: usize,
    /// How far below a threshold a shift aims, so that noise of the load does not cross it again.
    pub margin: f64,
    /// How far below that aim the load has to fall before calls return.
    pub hysteresis: f64,
}

impl RingsPolicy {
    /// Rings with the default margin of 3 % and hysteresis of 4 %.
    pub fn new(rings: Vec<LoadRing>, classes: usize) -> Self {
        Self { rings, classes, margin: 0.03, hysteresis: 0.04 }
    }

    /// Checks the order of rings and thresholds, and bounds.
    ///
    /// # Errors
    /// The first field that is not valid.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.rings.is_empty() || self.rings.len() > 16 {
            return Err(Invalid::new("rings", "there are none, or more than 16", "write 1 to 16 rings"));
        }
        if self.classes == 0 || self.classes > MAX_CLASSES {
            let hint = format!("name 1 to {MAX_CLASSES} classes");
            return Err(Invalid::new("classes", format!("there are {}", self.classes), hint));
        }
        for (i, ring) in self.rings.iter().enumerate() {
            let field = format!("rings[{i}].load");
            if !(0.05..=1.0).contains(&ring.load) {
                return Err(Invalid::new(
                    field,
                    format!("{} is out of range", ring.load),
                    "write 5% to 100%",
                ));
            }
            if i > 0 && self.rings[i - 1].load > ring.load {
                let hint = "order the thresholds: a farther ring opens at a higher load";
                return Err(Invalid::new(field, "is lower than that of the ring before", hint));
            }
        }
        let slack = self.margin + self.hysteresis;
        if !(0.0..=0.5).contains(&self.margin) || !(0.0..self.rings[0].load).contains(&slack) {
            let hint = "keep margin and hysteresis together below the first threshold";
            return Err(Invalid::new("margin", format!("{slack} with the hysteresis is out of range"), hint));
        }
        Ok(())
    }

    /// The thresholds, each lower by `by`.
    pub(crate) fn thresholds(&self, by: f64) -> Vec<f64> {
        self.rings.iter().map(|ring| ring.load - by).collect()
    }

    /// The load up to which calls stay in their region.
    pub(crate) fn threshold(&self) -> f64 {
        self.rings.first().map_or(1.0, |ring| ring.load)
    }

    /// The load above which calls are dropped.
    pub(crate) fn ceiling(&self) -> f64 {
        self.rings.last().map_or(1.0, |ring| ring.load)
    }
}
