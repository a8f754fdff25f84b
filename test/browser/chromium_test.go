// SPDX-License-Identifier: Apache-2.0

// Package browser looks at the page in a real browser: Debian's headless Chromium, driven
// through its DevTools. It is a module of its own, since nothing else needs their protocol.
package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/usher-dev/usher/internal/checktest"
	"github.com/usher-dev/usher/test/fetch"
)

// bound is how long each action in the browser may take.
const bound = time.Minute

// fonts is the fontconfig of the browser: it finds the one font that was fetched with it, so
// that pictures do not depend on the machine.
const fonts = `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig><dir>%s/usr/share/fonts</dir><cachedir>%s</cachedir></fontconfig>`

var chromium = sync.OnceValues(func() (string, error) {
	return fetch.DebianPrograms(context.Background(), "chromium", "chromium-headless-shell", "chromium-common", "fonts-dejavu-core")
})

// tab is a page in a browser of its own, with an empty profile.
type tab struct {
	*testing.T
	ctx context.Context
}

// open starts a browser with a window of that size.
func open(t *testing.T, width, height int64) *tab {
	t.Helper()
	folder := checktest.Must(chromium())(t)
	own := t.TempDir()
	config := filepath.Join(own, "fonts.conf")
	checktest.NoError(t, os.WriteFile(config, fmt.Appendf(nil, fonts, folder, own), 0o600))
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(filepath.Join(folder, "usr/lib/chromium/chromium-headless-shell")),
		chromedp.UserDataDir(filepath.Join(own, "profile")),
		chromedp.Env(libraries(folder), "FONTCONFIG_FILE="+config, "TZ=UTC", "LANG=C.UTF-8", "HOME="+own),
	}
	for _, flag := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "no-default-browser-check",
		"disable-background-networking", "disable-component-update", "disable-sync", "hide-scrollbars",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	ctx, stop := chromedp.NewExecAllocator(ctx, options...)
	ctx, closed := chromedp.NewContext(ctx)
	t.Cleanup(func() { closed(); stop(); cancel() })
	b := &tab{t, ctx}
	b.do(chromedp.EmulateViewport(width, height))
	return b
}

// libraries returns the usual library path, and the directory of libpulse's own libraries.
func libraries(folder string) string {
	more, _ := filepath.Glob(filepath.Join(folder, "usr/lib/*-linux-gnu*/pulseaudio")) // the pattern is well-formed
	return strings.Join(append([]string{fetch.LibraryPath(folder)}, more...), ":")
}

func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	checktest.NoError(b, chromedp.Do(b.ctx, actions...))
}

// get runs an action that has a result.
func get[T any](b *tab, action chromedp.Action[T]) T {
	b.Helper()
	return checktest.Must(chromedp.Run(b.ctx, action))(b)
}
