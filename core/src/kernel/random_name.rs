//! Random names (getrandom(2)).

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::plan::wire::bytes;

/// Sixteen hexadecimal digits.
pub fn random_name() -> Result<String, Errno> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes::hex(&bytes))
}
