//! What the full tier has besides the fence: the places of the grants, what covers names in them, and the copy that is worked on.

use std::ffi::{CStr, CString};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::cover::Cover;
use crate::fence::Fence;
use crate::files::Files;
use crate::namespaces::{self, NamespacesError, Payload, Started};
use crate::plan::{self, Namespaces, Plan};
use crate::refusal::Refusal;
use crate::root::Blueprint;
use crate::session::Session;
use crate::sys::SignalMask;

pub struct Enclosure<'p> {
    plan: &'p Plan,
    namespaces: &'p Namespaces,
    pub files: Files<'p>,
    covers: Vec<Cover>,
    pub session: Option<Session>,
}

impl<'p> Enclosure<'p> {
    /// `id` None: nothing will run, so nothing is made that would have to outlive it.
    pub fn prepare(
        plan: &'p Plan,
        namespaces: &'p Namespaces,
        requested: &'p plan::Files,
        files: Files<'p>,
        id: Option<&str>,
    ) -> Result<Enclosure<'p>, Refusal> {
        let covers = files.covers(requested)?;
        let session = match (&plan.workspace, id) {
            (Some(workspace), Some(id)) => Some(Session::open(&plan.sessions, workspace, id)?),
            _ => None,
        };
        Ok(Enclosure { plan, namespaces, files, covers, session })
    }

    pub fn start(
        &self,
        fence: &Fence,
        payload: Payload<'_>,
        mask: &SignalMask,
        terminal: Option<&CStr>,
        admit: impl FnOnce(Pid) -> Result<(), Errno>,
    ) -> Result<Started, NamespacesError> {
        let blueprint = Blueprint {
            plan: self.plan,
            namespaces: self.namespaces,
            files: &self.files,
            covers: &self.covers,
            session: self.session.as_ref(),
            terminal,
            pid_max: None,
            gid: rustix::process::getegid().as_raw(),
        };
        namespaces::start(&blueprint, fence, payload, mask, admit)
    }

    /// Leaves a note of what the copy is, before anything can be changed in it.
    pub fn note(&self, command: &[CString], plan: &str) -> Result<(), Refusal> {
        let resumed = self.plan.workspace.as_ref().is_some_and(|workspace| workspace.resume.is_some());
        match &self.session {
            Some(session) => Ok(session.note(command, &self.covers, plan, resumed)?),
            None => Ok(()),
        }
    }
}
