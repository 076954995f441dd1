//! Clients that send requests while the guest works.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use exoprobe_tests::http::Answer;
use exoprobe_tests::{Dice, Service};

use crate::attack::{Ground, Tally, work};

/// Clients, and the guest's work beside them.
pub(crate) struct Load<'a> {
    pub(crate) service: &'a Service,
    pub(crate) clients: u64,
    /// Calls of getpid in one round.
    pub(crate) calls: u64,
    /// Sends one request, or several that belong together; the text is another name each time.
    pub(crate) request: fn(&Service, &mut Dice, &str) -> Result<Answer, String>,
}

impl Load<'_> {
    /// Lets it run until the attack's time is over; `after` is called after each round. Returns the
    /// calls of getpid.
    pub(crate) fn run(
        &self,
        ground: &mut Ground,
        tally: &mut Tally,
        after: impl Fn(&mut Tally),
    ) -> u64 {
        let (done, times, mut calls) = (AtomicBool::new(false), AtomicU64::new(0), 0);
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..self.clients)
                .map(|index| {
                    let dice = Dice(ground.dice.roll());
                    let (done, times) = (&done, &times);
                    scope.spawn(move || self.client(index, dice, done, times))
                })
                .collect();
            while calls == 0 || Instant::now() < ground.end() {
                let command = format!("getpid {}", self.calls);
                match work(self.service, &command) {
                    Ok(said) => {
                        tally.check(said == format!("done {command}"), || said.clone());
                        calls += self.calls;
                        after(tally);
                    }
                    Err(error) => {
                        tally.found(error);
                        break;
                    }
                }
            }
            done.store(true, Ordering::Relaxed);
            for client in clients {
                let odd = client.join().unwrap_or_else(|_| vec!["a client panicked".to_owned()]);
                odd.into_iter().for_each(|answer| tally.found(answer));
            }
        });
        tally.times = times.load(Ordering::Relaxed);
        calls
    }

    /// Sends requests until `done`. Returns answers that no request may have.
    fn client(
        &self,
        index: u64,
        mut dice: Dice,
        done: &AtomicBool,
        times: &AtomicU64,
    ) -> Vec<String> {
        let (mut number, mut odd) = (0, Vec::new());
        while !done.load(Ordering::Relaxed) {
            number += 1;
            let answer = (self.request)(self.service, &mut dice, &format!("c{index}_{number}"));
            times.fetch_add(1, Ordering::Relaxed);
            match answer {
                // Too much, or too soon, are answers.
                Ok(answer) if answer.status < 500 || [503, 507].contains(&answer.status) => {}
                Ok(answer) => odd.push(format!("{answer:?}")),
                Err(error) => odd.push(error),
            }
        }
        odd
    }
}
