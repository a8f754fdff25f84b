// SPDX-License-Identifier: Apache-2.0

// Package sandbox runs a program in network, mount and process namespaces of its
// own, with a control group of its own, and takes all of it down again.
//
// A program that calls Enter first thing in main can run itself inside: Run
// starts it anew as process 1 of the namespaces, which prepares the mounts, runs
// the program with its arguments and reaps what is orphaned. Inside there is one
// network interface, loopback, and no way out. Mounts that are made there are
// nobody else's, /run is empty, and what is written to /var/lib and /var/log is
// gone afterwards.
//
// Everything inside ends with process 1, and that with the one that called Run,
// whatever ends it: the kernel sees to both.
package sandbox
