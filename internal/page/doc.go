// SPDX-License-Identifier: Apache-2.0

// Package page is the page in the browser: the sets, and their Pods as lanes on a time axis, live
// (Server) or afterwards, as one file (WriteFile).
//
// It shows one format, a Recording, with one run, or several that the page shows side by side. Sets
// have all fields of view.Summary, and lanes those of view.Pod, with times as in the API. All other
// times are milliseconds since the start of their run. Missing fields count as empty.
//
//	{"title": "…", "live": true, "keep": 3600000, "runs": [{
//	  "start": 1795435200000,                      since 1970; the other times count from here
//	  "now": 61000,                                how far the run is
//	  "marks": [{"at": 20000, "kind": "phase", "text": "update"}],
//	  "sets": [{
//	    "id": "CloneSet/shop/web",
//	    "phase": "Updating", "desired": 5, "available": 4, …,      view.Summary
//	    "registries": ["discovery"],               the lines below a lane, from the top
//	    "lanes": [{
//	      "name": "web-a", "state": "Normal", "available": true, …,  view.Pod
//	      "waits": [{"what": "leaves discovery", "since": "2026-11-23T12:00:58Z"}],
//	      "segments": [
//	        {"at": 0, "state": "Normal", "ready": true, "in": ["discovery"]},
//	        {"at": 58000, "state": "PreparingUpdate", "ready": true, "in": ["discovery"]},
//	        {"at": 61000, "state": ""}],           a segment lasts until the next; "" is the end
//	      "marks": [{"at": 30000, "kind": "restart"}, {"at": 31000, "kind": "lost", "count": 3}]
//	    }]
//	  }]
//	}]}
//
// A delta has the same form and holds only what is new. The runs are in the same order. The page finds
// sets by id and lanes by name, and appends segments and marks. Other fields of a run, set or lane in a
// delta replace the previous values. "gone": true removes a set, "reset": true everything before. Both
// sides forget lanes and segments that ended longer than "keep" ago.
//
// "silent" is the moment, in milliseconds since 1970, after which nothing is known, for example because
// the API server does not answer: bars end there, and no action is possible. A server also sends beats,
// so that a page notices when it has stopped.
//
// The script is the project's own, and the page loads nothing from anywhere.
package page
