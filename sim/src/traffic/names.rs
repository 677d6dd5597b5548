use fairmesh_model::{CallPath, Invalid, Label, Region, ServiceName, Zone};

use crate::scenario::Traffic as TrafficSpec;

/// Names of a scenario's regions and classes in the mesh.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) service: ServiceName,
    pub(crate) places: Vec<Place>,
    /// The classes with their own shares: all but the first.
    pub(crate) classes: Vec<Label>,
}

/// A region of the scenario: either a region of the mesh, or a zone of its only region.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) region: Region,
    pub(crate) zone: Option<Zone>,
}

impl Names {
    /// Names of the regions of a scenario, which may stand for the zones of one region.
    pub(crate) fn new(spec: &TrafficSpec, regions: &[Region], are_zones: bool) -> Result<Self, Invalid> {
        let place = |region: &Region| match are_zones {
            true => Ok(Place { region: Region::new("all")?, zone: Some(Zone::new(region.as_str())?) }),
            false => Ok(Place { region: region.clone(), zone: None }),
        };
        Ok(Self {
            service: ServiceName::new(crate::SERVICE)?,
            places: regions.iter().map(place).collect::<Result<_, Invalid>>()?,
            classes: spec
                .classes
                .iter()
                .skip(1)
                .map(|class| Label::new(class.name.clone()))
                .collect::<Result<_, Invalid>>()?,
        })
    }

    /// The label of a class with its own shares.
    pub(crate) fn label(&self, class: usize) -> Option<&Label> {
        self.classes.get(class.checked_sub(1)?)
    }

    /// The path of calls of a class between two regions of the scenario.
    pub(crate) fn path(&self, from: usize, class: usize, to: Option<usize>) -> CallPath {
        let (from, to) = (&self.places[from], to.map(|to| &self.places[to]));
        CallPath {
            service: self.service.clone(),
            from: from.region.clone(),
            to: to.map(|to| to.region.clone()),
            class: self.label(class).cloned(),
            caller: None,
            from_zone: from.zone.clone(),
            to_zone: to.and_then(|to| to.zone.clone()),
            parent: None,
        }
    }
}
