//! Which machine and network namespace an address within the machine is of.

use std::{fmt::Write as _, fs, io, os::unix::fs::MetadataExt as _};

use fairmesh_identity::sha256;

/// A random number that the kernel draws when the machine starts.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// The network namespace of this process.
const NETWORK_NAMESPACE: &str = "/proc/self/ns/net";

/// A digest of the machine, since its start, and of this process's network namespace. Two processes with the same digest
/// reach the same server at each address of the machine. No two namespaces that exist at a time have the same number.
///
/// # Errors
/// The system does not say.
pub(crate) fn local_host() -> io::Result<String> {
    let namespace = fs::metadata(NETWORK_NAMESPACE)?;
    Ok(digest_of(fs::read_to_string(BOOT_ID)?.trim(), [namespace.dev(), namespace.ino()]))
}

fn digest_of(boot_id: &str, [device, inode]: [u64; 2]) -> String {
    let mut digest = String::new();
    for byte in sha256(format!("{boot_id} {device} {inode}").as_bytes()) {
        // Writing to a `String` cannot fail.
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_differs_by_machine_start_and_network_namespace() {
        let own = digest_of("6f5e", [4, 4_026_531_840]);
        assert_eq!(own, digest_of("6f5e", [4, 4_026_531_840]));
        for other in [digest_of("6f5f", [4, 4_026_531_840]), digest_of("6f5e", [4, 4_026_531_841])] {
            assert_ne!(own, other);
        }
    }
}
