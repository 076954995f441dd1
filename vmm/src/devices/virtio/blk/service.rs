//! The work of a disk's thread: it carries out the requests that do not wait, and hands those that
//! would wait to a pool. They come back in any order; this thread alone writes the used ring. One
//! that would wait alone it carries out itself: two wake-ups of threads cost more than many media.

use std::io;
use std::ops::Deref;
use std::sync::Arc;

use exoprobe_guest::GuestRam;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::EventSet;

use super::Disk;
use super::host_file::Waiting;
use super::pool::Pool;
use super::request::{self, Chain};
use crate::devices::virtio::worker::{
    self, Event, Queues, Served, Service, Source, complete, drain_while,
};
use crate::threads::Threads;

/// RAM that a request holds while it is under way.
#[derive(Clone)]
struct Memory(GuestRam);

impl Deref for Memory {
    type Target = GuestMemoryMmap;

    fn deref(&self) -> &GuestMemoryMmap {
        self.0.as_memory()
    }
}

/// A request of a queue's.
struct Job {
    queue: usize,
    chain: Chain<Memory>,
}

/// A request that was carried out.
struct Done {
    queue: usize,
    head: u16,
    /// Bytes written to its buffers.
    written: u32,
}

/// Carries a request out, which waits for the medium.
fn carry_out(disk: &Disk, id: &str, Job { queue, chain }: &Job) -> Done {
    let served = request::serve(disk, id, chain.memory(), chain, Waiting::Allowed);
    Done { queue: *queue, head: chain.head_index(), written: served.unwrap_or(0) }
}

/// The disk's side of its queues.
pub(super) struct DiskService {
    disk: Arc<Disk>,
    id: String,
    memory: Memory,
    pool: Pool<Job, Done>,
    /// The newest request that would wait, while the queue is looked at for another.
    newest: Option<Job>,
    /// Queues with requests that wait for a free thread.
    stalled: Vec<usize>,
}

impl DiskService {
    /// # Errors
    /// The system's, when threads cannot be started.
    pub(super) fn new(
        disk: Arc<Disk>,
        id: String,
        ram: GuestRam,
        threads: &Threads,
    ) -> io::Result<Self> {
        Self::with(disk, id, ram, threads, carry_out)
    }

    /// The service whose pool carries requests out by `work`.
    fn with(
        disk: Arc<Disk>,
        id: String,
        ram: GuestRam,
        threads: &Threads,
        work: impl Fn(&Disk, &str, &Job) -> Done + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (of_pool, name) = (Arc::clone(&disk), id.clone());
        let pool = Pool::start(threads, move |job| work(&of_pool, &name, &job))?;
        Ok(Self { disk, id, memory: Memory(ram), pool, newest: None, stalled: Vec::new() })
    }

    /// The pool's file.
    pub(super) fn source(&self) -> Source {
        Source { fd: self.pool.fd(), events: EventSet::IN }
    }

    fn take_requests(&mut self, queues: &mut Queues, queue: usize) -> Served {
        let Some(handle) = worker::queue(queues, queue) else { return Ok(()) };
        let has_room = |service: &mut Self| {
            let has_room = service.pool.has_room(usize::from(service.newest.is_some()));
            if !has_room && !service.stalled.contains(&queue) {
                service.stalled.push(queue);
            }
            has_room
        };
        let serve = |service: &mut Self, chain: Chain<Memory>| {
            let (disk, memory) = (&service.disk, chain.memory());
            let served = request::serve(disk, &service.id, memory, &chain, Waiting::Refused);
            if served.is_none()
                && let Some(earlier) = service.newest.replace(Job { queue, chain })
            {
                service.pool.hand_over(earlier);
            }
            served
        };
        let memory = self.memory.clone();
        let drained = drain_while(handle, memory, self, has_room, serve);
        drained.map_err(|damage| (queue, damage)).and(self.carry_newest_out(queues))
    }

    /// Carries the newest request out in place if no other is under way.
    fn carry_newest_out(&mut self, queues: &mut Queues) -> Served {
        let Some(job) = self.newest.take() else { return Ok(()) };
        if self.pool.is_idle() {
            let done = carry_out(&self.disk, &self.id, &job);
            return self.give_back(queues, vec![done]);
        }
        self.pool.hand_over(job);
        Ok(())
    }

    fn give_back(&self, queues: &mut Queues, all: Vec<Done>) -> Served {
        for Done { queue, head, written } in all {
            // One that is damaged meanwhile gets nothing back.
            let Some(handle) = worker::queue(queues, queue) else { continue };
            complete(handle, &self.memory, head, written).map_err(|damage| (queue, damage))?;
        }
        Ok(())
    }
}

impl Service for DiskService {
    fn serve(&mut self, event: Event, queues: &mut Queues, _: &GuestMemoryMmap) -> Served {
        match event {
            Event::Kick(queue) => self.take_requests(queues, queue),
            Event::Source => {
                let done = self.pool.take_done();
                for queue in self.stalled.drain(..) {
                    // The driver does not kick for what it has given before.
                    let kicked = worker::queue(queues, queue).map(|handle| handle.kick.write(1));
                    drop(kicked);
                }
                self.give_back(queues, done)
            }
        }
    }

    fn finish(&mut self, queues: &mut Queues) -> Served {
        let done = self.pool.finish();
        self.give_back(queues, done)
    }
}

#[cfg(test)]
mod tests;
