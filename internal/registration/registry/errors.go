// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/go-logr/logr"
)

var (
	// ErrTransient marks a failure that an unchanged retry may overcome: the registry
	// is down, slow or overloaded.
	ErrTransient = errors.New("the registry is not available now")
	// ErrPermanent marks a failure that persists until someone changes something: wrong
	// credentials, a refused value, or an address that speaks another protocol.
	ErrPermanent = errors.New("the registry refuses")
	// ErrConflict marks a change computed from an outdated list: list again and
	// recompute it.
	ErrConflict = errors.New("conflict")
	// ErrForeign marks a change to an entry that another owner wrote. The change was
	// not made and must not be forced.
	ErrForeign = errors.New("foreign entry")
	// ErrOneService marks a failure that concerns a single service: the registry itself
	// works. It comes with another mark.
	ErrOneService = errors.New("one service")
	// ErrCopied marks a registry that Usher leaves alone, because this cluster may be a copy of one whose entries are
	// there. It is permanent, too.
	ErrCopied = errors.New("this cluster may be a copy")
	// ErrNoService marks the absence of a service: nobody is called through it.
	ErrNoService = errors.New("no such service")
)

// marked adds a mark that errors.Is finds, without repeating it in the message.
type marked struct {
	error
	mark error
}

func (m marked) Unwrap() []error { return []error{m.error, m.mark} }

// Transient marks err with ErrTransient.
func Transient(err error) error { return mark(err, ErrTransient) }

// Permanent marks err with ErrPermanent.
func Permanent(err error) error { return mark(err, ErrPermanent) }

// OneService marks err with ErrOneService.
func OneService(err error) error { return mark(err, ErrOneService) }

// NoService marks err with ErrNoService, and as one that concerns a single service.
func NoService(err error) error { return OneService(mark(err, ErrNoService)) }

func mark(err, as error) error {
	if err == nil {
		return nil
	}
	return marked{error: err, mark: as}
}

// ChangeError tells why one change of a batch was not made.
type ChangeError struct {
	// ID is the entry's ID.
	ID string
	// Err is the reason; errors.Is finds one of the four marks in it.
	Err error
}

// Refused is the error of the change if it is not made.
func (c Change) Refused(err error) error { return &ChangeError{ID: c.Entry.ID, Err: err} }

// Error names the entry and the reason.
func (e *ChangeError) Error() string { return fmt.Sprintf("entry %s: %v", e.ID, e.Err) }

// Unwrap returns the reason.
func (e *ChangeError) Unwrap() error { return e.Err }

// ChangeErrors returns the reasons by entry ID, and the rest of err without them: nil
// if every change was either made or refused on its own.
func ChangeErrors(err error) (byID map[string]error, rest error) {
	byID = map[string]error{}
	var others []error
	var sort func(error)
	sort = func(err error) {
		switch e := err.(type) { //nolint:errorlint // It unwraps the joins.
		case *ChangeError:
			byID[e.ID] = errors.Join(byID[e.ID], e.Err)
		case marked: // whose mark is no error of its own
			others = append(others, err)
		case interface{ Unwrap() []error }:
			for _, one := range e.Unwrap() {
				sort(one)
			}
		default:
			others = append(others, err)
		}
	}
	sort(err)
	return byID, errors.Join(others...)
}

// Recover makes a panic of a connector its error, as in "defer registry.Recover(ctx, &err)":
// what one registry answers ends neither the process nor the work for other registries. Each
// goroutine needs its own. The stack is logged.
func Recover(ctx context.Context, err *error) {
	value := recover()
	if value == nil {
		return
	}
	*err = Permanent(fmt.Errorf("this is a bug in Usher, please report it with the stack from its log: %v", value))
	logr.FromContextOrDiscard(ctx).Error(*err, "a connector panicked", "stack", string(debug.Stack()))
}
