// SPDX-License-Identifier: Apache-2.0

// Package sandbox runs a program in its own network, mount and process namespaces and
// its own control group, and removes all of them afterwards.
//
// A program that calls Enter first thing in main can run itself inside: Run starts it
// again as process 1 of the namespaces, which prepares the mounts, runs the program
// with its arguments and reaps orphans. Inside there is one network interface,
// loopback, and no way out. Mounts made there are visible to nobody else, /run is
// empty, and what is written to /var/lib and /var/log is gone afterwards.
//
// Everything inside ends with process 1, and process 1 ends with the process that
// called Run, however that ends: the kernel ensures both.
package sandbox
