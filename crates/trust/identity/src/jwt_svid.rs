//! Limits of JWT-SVIDs.

/// Maximum number of audiences of a token.
const MAX_AUDIENCES: usize = 16;
/// Maximum size of an audience, in bytes.
const MAX_AUDIENCE: usize = 256;

/// Checks the audiences of a JWT-SVID, which must have at least one (SPIFFE JWT-SVID, 3.2).
///
/// # Errors
/// What is wrong with them, and what to do.
pub fn check_audience(audience: &[String]) -> Result<(), &'static str> {
    if !(1..=MAX_AUDIENCES).contains(&audience.len()) {
        return Err("a JWT-SVID is for 1 to 16 audiences; name who verifies it");
    }
    match audience.iter().all(|one| (1..=MAX_AUDIENCE).contains(&one.len())) {
        true => Ok(()),
        false => Err("an audience has 1 to 256 bytes; name who verifies the JWT-SVID"),
    }
}
