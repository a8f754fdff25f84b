// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestSearch: the keyboard finds a section of the documentation and goes there, in the site as
// `make docs` leaves it on the disk: without a server and without a network.
func TestSearch(t *testing.T) {
	home, err := filepath.Abs("../../bin/docs/index.html")
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, 1280, 860)
	b.do(chromedp.Navigate("file://"+home), chromedp.Focus(chromedp.CSS("#search")), chromedp.KeyEvent("whose service"))
	b.eventually("the best first", `document.querySelector("#results li")?.textContent.includes("Whose a service is")`)
	b.eventually("the words marked", `[...document.querySelectorAll("#results mark")].some((m) => m.textContent === "service")`)
	b.named("combobox Search", "listbox Pages found")
	b.do(chromedp.KeyEvent("\r"), chromedp.WaitVisible(chromedp.CSS(`nav [aria-current][href*="service-owners"]`)))
}
