//! Calls that servers processed, and nodes of the call graph.

use fairmesh_model::{
    CallNode, Invalid, MAX_RATE, Region, ServedPath, ServedRates, ServiceName, UTILISATION_BUCKETS,
};

use super::{optional, plausible};
use crate::v1;

/// The service and the class of a node, as message fields.
pub(super) fn write_node(node: CallNode) -> (String, String) {
    (node.service.to_string(), node.class.map(String::from).unwrap_or_default())
}

pub(super) fn read_node(service: &str, class: String) -> Result<CallNode, Invalid> {
    Ok(CallNode {
        service: ServiceName::new(service).map_err(|e| e.within("service"))?,
        class: optional("class", class)?,
    })
}

pub(super) fn write(path: ServedPath, rates: ServedRates) -> v1::ServedRates {
    let (service, class) = write_node(path.node);
    v1::ServedRates {
        service,
        class,
        region: path.region.into(),
        bucket: path.bucket.map_or(0, |bucket| u32::from(bucket) + 1),
        calls: rates.calls,
        exclusive_us: rates.exclusive_us,
    }
}

pub(super) fn read(message: v1::ServedRates) -> Result<(ServedPath, ServedRates), Invalid> {
    plausible("calls", message.calls, MAX_RATE)?;
    let bucket = match message.bucket {
        0 => None,
        bucket => {
            Some(u8::try_from(bucket - 1).ok().filter(|bucket| *bucket < UTILISATION_BUCKETS).ok_or_else(
                || Invalid::new("bucket", format!("is {bucket}"), format!("send 0 to {UTILISATION_BUCKETS}")),
            )?)
        }
    };
    let path = ServedPath {
        node: read_node(&message.service, message.class)?,
        region: Region::try_from(message.region).map_err(|e| e.within("region"))?,
        bucket,
    };
    Ok((path, ServedRates { calls: message.calls, exclusive_us: message.exclusive_us }))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Reads a row of a report.
    pub(in super::super) fn row(
        service: &ServiceName,
        region: &Region,
        bucket: Option<u8>,
    ) -> (ServedPath, ServedRates) {
        let node = CallNode { service: service.clone(), class: bucket.map(|_| "bulk".parse().unwrap()) };
        let path = ServedPath { node, region: region.clone(), bucket };
        (path, ServedRates { calls: 3_000, exclusive_us: 12_000 })
    }
}
