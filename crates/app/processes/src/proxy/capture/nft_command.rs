//! Runs `nft`, which applies rules as text in one transaction.

use std::{
    io::{self, Write as _},
    process::{Command, Output, Stdio},
};

use fairmesh_console::failure::Failure;

use super::nft_rules::TABLE;

/// Path of `nft`, for systems on which users do not have it in PATH.
const FALLBACK_PATH: &str = "/usr/sbin/nft";

/// Applies a script atomically.
pub(super) fn load(script: &str) -> Result<(), Failure> {
    let output = run(&["-f", "-"], script)?;
    if output.status.success() { Ok(()) } else { Err(refused(&complaint(&output))) }
}

/// Removes our table; returns whether there was one.
pub(super) fn remove() -> Result<bool, Failure> {
    let output = run(&["-f", "-"], &format!("delete table {TABLE}\n"))?;
    if output.status.success() {
        return Ok(true);
    }
    let complaint = complaint(&output);
    if is_absent(&complaint) { Ok(false) } else { Err(refused(&complaint)) }
}

/// Whether our table exists.
pub(super) fn has_table() -> Result<bool, Failure> {
    Ok(run(&["-f", "-"], &format!("list table {TABLE}\n"))?.status.success())
}

fn run(arguments: &[&str], script: &str) -> Result<Output, Failure> {
    match feed("nft", arguments, script) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => feed(FALLBACK_PATH, arguments, script),
        outcome => outcome,
    }
    .map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::failed_with(
            "there is no nft on this machine, which sets up the redirection",
            "install the package nftables (Debian: apt-get install nftables), or print the rules with --dry-run and load them \
             otherwise",
        ),
        _ => Failure::failed(format!("cannot run nft: {error}")),
    })
}

fn feed(program: &str, arguments: &[&str], script: &str) -> io::Result<Output> {
    let mut command = Command::new(program);
    // The messages of nft are parsed and must be in English.
    command.args(arguments).env("LC_ALL", "C");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // If it ends before it has read everything, its output has the reason.
        let _ = input.write_all(script.as_bytes());
    }
    child.wait_with_output()
}

fn complaint(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).trim().to_owned()
}

fn is_absent(complaint: &str) -> bool {
    complaint.contains("No such file or directory") && complaint.contains("delete table")
}

/// The error for a user who lacks the privilege.
pub(super) fn not_permitted() -> Failure {
    Failure::failed_with(
        "this user may not change nftables rules",
        "run it as root, or with CAP_NET_ADMIN in this network namespace",
    )
}

/// Converts an error message of nft to a failure with a hint.
fn refused(complaint: &str) -> Failure {
    let has = |words: &[&str]| words.iter().any(|words| complaint.contains(words));
    if has(&["Operation not permitted", "Permission denied"]) {
        return not_permitted();
    }
    if has(&["Protocol not supported", "Unable to initialize Netlink socket"]) {
        return Failure::failed_with(
            "this kernel has no nf_tables",
            "load the module (modprobe nf_tables), or run a kernel with CONFIG_NF_TABLES_INET and CONFIG_NFT_NAT",
        );
    }
    if has(&[
        "Could not process rule: No such file or directory",
        "Could not process rule: Operation not supported",
    ]) {
        return Failure::failed_with(
            format!("this kernel's nf_tables lacks something that the rules need: {complaint}"),
            "it needs CONFIG_NFT_NAT; CONFIG_NFT_SOCKET for cgroups; and for --from also CONFIG_NFT_TPROXY, CONFIG_NFT_FIB_INET and \
             CONFIG_NFT_REJECT: as modules nft_chain_nat, nft_nat, nft_socket, nft_tproxy, nft_fib_inet and nft_reject_inet",
        );
    }
    Failure::failed(format!("nft refused the rules: {complaint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nft_errors_include_remedy() {
        for (complaint, hint) in [
            ("netlink: Error: cache initialization failed: Operation not permitted", "CAP_NET_ADMIN"),
            ("netlink: Error: cache initialization failed: Protocol not supported", "modprobe nf_tables"),
            ("/dev/stdin:4:3-9: Error: Could not process rule: No such file or directory", "CONFIG_NFT_NAT"),
            ("/dev/stdin:1:1-2: Error: syntax error", "nft refused the rules"),
        ] {
            assert!(format!("{:?}", refused(complaint)).contains(hint), "{complaint}");
        }
    }

    #[test]
    fn missing_nft_table_is_distinguished_from_other_errors() {
        let absent = "/dev/stdin:1:19-34: Error: Could not process rule: No such file or directory\n\
                      delete table inet fairmesh_capture\n                  ^^^^";
        assert!(is_absent(absent));
        assert!(!is_absent("Error: Could not process rule: No such file or directory\nadd rule"));
    }
}
