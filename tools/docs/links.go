// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"html"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
)

var (
	anchors = regexp.MustCompile(`\bid="([^"]*)"`)
	links   = regexp.MustCompile(`<(?:a|link|script|img|source)\b[^>]*?\b(?:href|src|srcset)="([^"]*)"`)
)

// deadLinks follows every link between the site's files, to the anchor. Nothing but <a> may
// lead elsewhere: the site works without network.
func deadLinks(site fs.FS) (dead []string, err error) {
	ids, pages := map[string]bool{}, map[string]string{}
	err = fs.WalkDir(site, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		ids[name] = true
		if path.Ext(name) != ".html" {
			return nil
		}
		text, err := fs.ReadFile(site, name)
		for _, found := range anchors.FindAllSubmatch(text, -1) {
			ids[name+"#"+html.UnescapeString(string(found[1]))] = true
		}
		pages[name] = string(text)
		return err
	})
	for name, text := range pages {
		for _, found := range links.FindAllStringSubmatch(text, -1) {
			if !alive(ids, name, found[0], html.UnescapeString(found[1])) {
				dead = append(dead, fmt.Sprintf("%s: %s", name, found[1]))
			}
		}
	}
	slices.Sort(dead)
	return slices.Compact(dead), err
}

func alive(ids map[string]bool, page, tag, link string) bool {
	to, err := url.Parse(link)
	if err != nil {
		return false
	}
	if to.IsAbs() {
		return tag[:2] == "<a" && tag[2] == ' '
	}
	file := page
	if to.Path != "" {
		file = path.Join(path.Dir(page), to.Path)
	}
	if to.Fragment != "" {
		file += "#" + to.Fragment
	}
	return ids[file]
}
