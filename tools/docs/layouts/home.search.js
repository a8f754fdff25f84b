{{- /* Every section of every page: A script, since a page
that is opened as a file may not fetch. */ -}}
{{- $sections := slice -}}
{{- /* Which part of the list of pages each page is in: those that say what to do come before those on how it is made. */ -}}
{{- $parts := newScratch -}}
{{- range $i, $part := split site.Home.Content "<h2 " -}}
  {{- if $i -}}
    {{- $id := index (findRESubmatch `^id="([^"]*)"` $part) 0 1 -}}
    {{- range findRESubmatch `<li>\s*(?:<p>)?<a href="([^":]*\.html)"` $part }}{{ $parts.SetInMap "of" (index . 1) $id }}{{ end -}}
  {{- end -}}
{{- end -}}
{{- $partOf := $parts.Get "of" -}}
{{- range site.Pages -}}
  {{- if or .IsPage .IsHome -}}
    {{- $page := partial "title.html" . -}}
    {{- $url := strings.TrimPrefix "/" .RelPermalink -}}
    {{- range $i, $part := split (replaceRE `<(h[1-4]) id=` "\x00<$1 id=" .Content) "\x00" -}}
      {{- with index (findRESubmatch `(?s)^<h([1-4]) id="([^"]*)">(.*?)</h[1-4]>(.*)$` $part) 0 -}}
        {{- $heading := index . 3 | replaceRE `<a class="anchor".*?</a>` "" | plainify | htmlUnescape | strings.TrimSpace -}}
        {{- $text := index . 4 | replaceRE `</(p|li|td|th|pre|div)>` " " | plainify | htmlUnescape | replaceRE `\s+` " " -}}
        {{- $to := cond (eq (index . 1) "1") $url (printf "%s#%s" $url (index . 2)) -}}
        {{- $sections = $sections | append (dict "to" $to "page" $page "heading" $heading "text" $text "part" (index $partOf $url | default "reference")) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
var sections = {{ $sections | jsonify }};
