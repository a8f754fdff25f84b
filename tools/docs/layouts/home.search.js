{{- /* Every section of every page: A script, since a page
that is opened as a file may not fetch. */ -}}
{{- $sections := slice -}}
{{- range site.Pages -}}
  {{- if or .IsPage .IsHome -}}
    {{- $page := partial "title.html" . -}}
    {{- $url := strings.TrimPrefix "/" .RelPermalink -}}
    {{- range $i, $part := split (replaceRE `<(h[1-4]) id=` "\x00<$1 id=" .Content) "\x00" -}}
      {{- with index (findRESubmatch `(?s)^<h([1-4]) id="([^"]*)">(.*?)</h[1-4]>(.*)$` $part) 0 -}}
        {{- $heading := index . 3 | replaceRE `<a class="anchor".*?</a>` "" | plainify | htmlUnescape | strings.TrimSpace -}}
        {{- $text := index . 4 | replaceRE `</(p|li|td|th|pre|div)>` " " | plainify | htmlUnescape | replaceRE `\s+` " " -}}
        {{- $to := cond (eq (index . 1) "1") $url (printf "%s#%s" $url (index . 2)) -}}
        {{- $sections = $sections | append (dict "to" $to "page" $page "heading" $heading "text" $text) -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
var sections = {{ $sections | jsonify }};
