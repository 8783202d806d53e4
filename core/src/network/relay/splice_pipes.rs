//! Pipes for splice(2), which moves bytes from socket to socket without copying. A direction has
//! one only while it holds bytes.

use std::os::fd::OwnedFd;

use rustix::pipe::PipeFlags;

/// Most kernels allow a user 64 MiB of pipes; beyond that, new pipes are small.
const PIPE_BYTES: usize = 256 << 10;

/// Free pipes that are kept.
const MAX_FREE_PIPES: usize = 16;

pub struct Pipe {
    pub out: OwnedFd,
    pub into: OwnedFd,
    pub bytes: usize,
}

pub struct Pipes {
    free: Vec<Pipe>,
    /// How many more may be created: connections need descriptors first.
    remaining: usize,
}

impl Pipes {
    pub fn new(max_pipes: usize) -> Pipes {
        Pipes { free: Vec::with_capacity(MAX_FREE_PIPES), remaining: max_pipes }
    }

    /// None: no pipe is left, and bytes are copied.
    pub fn take(&mut self) -> Option<Pipe> {
        if let Some(pipe) = self.free.pop() {
            return Some(pipe);
        }
        self.remaining = self.remaining.checked_sub(1)?;
        let Ok((out, into)) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        else {
            self.remaining += 1;
            return None;
        };
        let _ = rustix::pipe::fcntl_setpipe_size(&into, PIPE_BYTES);
        Some(Pipe { out, into, bytes: 0 })
    }

    /// A pipe that still holds bytes is closed.
    pub fn put_back(&mut self, pipe: Pipe) {
        if pipe.bytes == 0 && self.free.len() < MAX_FREE_PIPES {
            self.free.push(pipe);
        } else {
            self.remaining += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_empty_pipe_is_reused() {
        let mut pipes = Pipes::new(2);
        let (first, second) = (pipes.take().unwrap(), pipes.take().unwrap());
        assert!(pipes.take().is_none());
        pipes.put_back(Pipe { bytes: 3, ..first });
        assert!(pipes.free.is_empty());
        pipes.put_back(second);
        assert_eq!(pipes.free.len(), 1);
        assert!(pipes.take().is_some() && pipes.take().is_some() && pipes.take().is_none());
    }
}
