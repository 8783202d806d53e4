//! stub
use std::os::fd::{BorrowedFd, OwnedFd};
pub struct Companion;
impl Companion {
    pub fn new(_given: Option<OwnedFd>) -> Companion {
        Companion
    }
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    pub fn ask(&mut self, _question: &Question<'_>) -> Result<(), String> {
        Err("stub".to_owned())
    }
    pub fn withdraw(&mut self, _id: u64) {}
    pub fn hear(&mut self) -> Option<Heard> {
        None
    }
}
#[allow(dead_code)]
pub struct Question<'a> {
    pub id: u64,
    pub exe: &'a [u8],
    pub chain: &'a [&'a [u8]],
    pub argv: &'a [&'a [u8]],
    pub cwd: &'a [u8],
    pub pid: u32,
    pub parent: Option<(&'a [u8], &'a [&'a [u8]])>,
    pub rule: Option<&'a [u8]>,
    pub source: &'a [u8],
    pub reason: Option<&'a [u8]>,
    pub timeout_s: u64,
}
#[allow(dead_code)]
pub enum Heard {
    Answer { id: u64, answer: Answer, by: String },
    Gone,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code)]
pub enum Answer {
    Once,
    Session,
    Deny,
}
