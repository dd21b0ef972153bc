// Copyright The rdma-spec Authors.
// SPDX-License-Identifier: Apache-2.0

// How the pages in docs become a site. They are written for the repository: what leads out of docs leads to the repository, and a
// message in a table is found, and has an address, like a heading. SITE_BASE is the path that the site is served at, and SITE_VERSION
// the version that it is about.

import { createHash } from 'node:crypto'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { miniSearch } from './search.mjs'

const top = fileURLToPath(new URL('../..', import.meta.url))
const read = (file) => readFileSync(join(top, file), 'utf8')

const version = process.env.SITE_VERSION || 'main'
const repository = 'https://github.com/rdma-spec/rdma-spec'
const source = `${repository}/blob/${version}/`
const canonical = read('docs/docs.go').match(/^const Site = "(.*)"$/m)[1]

// Where a page is: each has a directory, so that every server finds /faults/port-active.
const address = (file) => file === 'index.md' ? '' : file.replace(/\.md$/, '/')

// What a page is called: the end of the line that leads back to the README.
const name = (file) => read(join('docs', file)).match(/^\[rdma-spec\]\(.*\/ (.*)$/m)[1]
const entry = (file) => ({ text: name(file), link: `/${address(file)}` })

// The groups of the side bar. What somebody looks for who has a fault is first on the pages of faults.
const troubleshooting = ['troubleshoot', 'why', 'doctor', 'faults', 'looking-at-a-node']
const readers = {
  'Get started': ['concepts', 'install', 'pods', 'restricted', 'hcas-for-pods', 'comparison'],
  Guides: ['guide-gpu-cluster', 'guide-spiderpool', 'guide-sriov', 'test-a-transfer', 'verify', 'without-nri', 'cdi', 'platforms'],
  Troubleshooting: troubleshooting,
  Operate: ['configure', 'gate', 'fail-closed', 'security', 'upgrade-and-uninstall'],
}
const listed = Object.values(readers).flat()
readers.Reference = readdirSync(join(top, 'docs')).filter((file) => file.endsWith('.md') && file !== 'index.md')
  .map((file) => file.slice(0, -3)).filter((page) => !listed.includes(page))

const sidebar = [
  ...Object.entries(readers).map(([text, pages]) => ({ text, items: pages.map((page) => entry(`${page}.md`)) })),
  { text: 'Design', items: readdirSync(join(top, 'docs/design')).map((file) => entry(`design/${file}`)) },
  {
    text: 'Contributors',
    items: [['Where to ask', 'SUPPORT.md'], ['Contributing', 'CONTRIBUTING.md'], ['Security', 'SECURITY.md'], ['Changelog', 'CHANGELOG.md']]
      .map(([text, file]) => ({ text, link: source + file })),
  },
]

// The menu leads to the first page of each group of readers but Operate.
const menu = sidebar.filter(({ text }) => text in readers && text !== 'Operate').map(({ text, items }) => ({
  text, link: items[0].link, activeMatch: `^/(${items.map(({ link }) => link.slice(1, -1)).join('|')})/`,
}))

// A fault's page has the symptom as its title.
const symptom = (check) => read(`docs/faults/${check}.md`).match(/^# (.*)$/m)[1]

// The checks, by the families in the page that lists them.
const families = read('docs/faults.md').split(/^## /m).slice(1).map((family) => ({
  text: family.split('\n', 1)[0],
  items: [...family.matchAll(/\]\(faults\/(.*)\.md\)/g)].map(([, check]) => ({ text: symptom(check), link: `/faults/${check}/` })),
}))

// The page of each message's first cause, by Troubleshoot's rows.
const firstPage = new Map([...read('docs/troubleshoot.md').matchAll(/^\| (`.*`) \| .* \| \[[^\]]*\]\(faults\/([a-z0-9-]+)\.md\)/gm)]
  .flatMap(([, messages, check]) => messages.split('<br>').map((message) => [message.replaceAll('\\|', '|'), check])))

const bare = (message) => message.replace(/^`+ ?| ?`+$/g, '')

// A heading has the name that it has where the repository is browsed.
const heading = (text) => text.toLowerCase().replace(/[^a-z0-9_ -]/g, '').replaceAll(' ', '-')

// A message as it is printed, without spaces.
const anchor = (message) => message.replace(/\s+/g, '-')

// Each link and each picture leads where it leads in the repository.
function destination(href, page) {
  if (/^[a-z]+:|^[#/]/.test(href)) return href
  const [path, fragment = ''] = href.split(/(?=#)/)
  const file = join('docs', dirname(page), path)
  if (!existsSync(join(top, file))) throw new Error(`docs/${page}: ${href} leads nowhere`)
  if (file === 'README.md' && !fragment && page !== 'index.md') return '/'
  const below = relative('docs', file)
  return below.startsWith('..') ? source + file + fragment : `/${address(below)}${fragment}`
}

function repositoryLinks(md) {
  const link = md.renderer.rules.link_open
  md.renderer.rules.link_open = (tokens, i, options, env, self) => {
    const page = relative(join(top, 'docs'), env.realPath ?? env.path)
    tokens[i].attrSet('href', destination(tokens[i].attrGet('href'), page))
    return link(tokens, i, options, env, self)
  }
}

// In a table that is stacked on a phone, each cell has the heading of its column.
function cellHeadings(md) {
  md.core.ruler.push('headings', ({ tokens }) => {
    let headings = [], column = 0
    tokens.forEach(({ type }, i) => {
      if (type === 'thead_open') headings = []
      else if (type === 'th_open') headings.push(tokens[i + 1].content.replace(/`/g, ''))
      else if (type === 'tr_open') column = 0
      else if (type === 'td_open') tokens[i].attrSet('data-label', headings[column++] ?? '')
    })
  })
}

// The tables of messages: each message has an address, and links to it. Tables and pictures scroll, by the keyboard too.
function messageRows(md) {
  md.core.ruler.push('messages', ({ tokens, env }) => {
    tokens.forEach((token, i) => {
      const picture = token.type === 'paragraph_open' && tokens[i + 1].children.every(({ type }) => type === 'image')
      if (picture) token.attrSet('class', 'picture')
      if (picture || token.type === 'table_open') token.attrSet('tabindex', '0')
      const [cell, text] = [tokens[i + 1], tokens[i + 2]]
      if (token.type !== 'tr_open' || cell.type !== 'td_open' || !/\/troubleshoot(\/index)?\.md$/.test(env.path)) return
      if (text.children[0]?.type !== 'code_inline') return
      for (const message of text.children.filter(({ type }) => type === 'code_inline')) {
        message.attrSet('class', 'message')
        message.meta = { id: anchor(message.content) }
      }
    })
  })
  const code = md.renderer.rules.code_inline
  md.renderer.rules.code_inline = (tokens, i, ...rest) => {
    const html = code(tokens, i, ...rest)
    const id = tokens[i].meta?.id
    return id ? `<a id="${md.utils.escapeHtml(id)}" href="#${encodeURIComponent(id)}">${html}</a>` : html
  }
}

// The box for a log stands where a page has this comment, which the repository does not show.
const box = '<!-- Here the site has a box, Paste your log. -->'
function logBox(md) {
  const html = md.renderer.rules.html_block
  md.renderer.rules.html_block = (tokens, i, ...rest) =>
    tokens[i].content.trim() === box ? '<PasteYourLog />' : html(tokens, i, ...rest)
}

// What a page may do: nothing but this site's own files is loaded, and nothing is sent elsewhere. It holds for the worker that reads a
// log as well, which comes from a blob. VitePress has scripts in its pages, which are named by their hashes, and styles.
function withPolicy(html) {
  const scripts = [...html.matchAll(/<script(?![^>]* src=)[^>]*>(.*?)<\/script>/gs)]
    .map(([, script]) => `'sha256-${createHash('sha256').update(script).digest('base64')}'`)
  const policy = ["default-src 'self'", `script-src 'self' 'wasm-unsafe-eval' ${[...new Set(scripts)].join(' ')}`,
    "style-src 'self' 'unsafe-inline'", "img-src 'self' data:", "connect-src 'self'", 'worker-src blob:', "object-src 'none'",
    "base-uri 'none'", "form-action 'none'"].join('; ')
  return html.replace('<meta charset="utf-8">', `$&\n    <meta http-equiv="Content-Security-Policy" content="${policy}">`)
}

// What a status is in the words of C libraries, which most programs print.
const errnos = Object.fromEntries([...read('cmd/internal/why/status.go').matchAll(/\{"(E[A-Z]+)", \d+, \[\]string\{"([^"]*)"/g)]
  .map(([, name, text]) => [name, text]))
const inWords = (messages) => (messages.match(/\bE[A-Z]+\b/g) ?? []).map((name) => errnos[name] ?? '').join(' ')

// What the search index reads: a message is a heading, and what stands beside it is its text. A fault's title has the check's name.
function indexed(src, env, md) {
  const [, check] = env.relativePath.match(/^faults\/(.*)\.md$/) ?? []
  const html = md.render(src, env).replace(/<a class="header-anchor".*?<\/a><\/h1>/, (end) => check ? ` (${check}) ${end}` : end)
  return html.replace(/<tr>\s*<td[^>]*>(<a id=.*?)<\/td>(.*?)<\/tr>/gs, (_, messages, rest) =>
    [...messages.matchAll(/<a id="[^"]*" href="(#[^"]*)">(.*?)<\/a>/g)]
      .map(([, href, message]) => `<h3>${message} <a href="${href}"></a></h3><p>${inWords(messages)} ${rest.replace(/<\/?td[^>]*>/g, ' ')}</p>`).join(''))
}

// Pages import Vue, and node_modules is not above them but here.
const vueFromHere = {
  name: 'vue-from-here',
  enforce: 'pre',
  resolveId(id, importer, options) {
    if (/^vue(\/|$)/.test(id) && importer?.endsWith('.md')) return this.resolve(id, fileURLToPath(import.meta.url), options)
  },
}

// The mark of the project, as an address: so no page asks for a file of its own.
const mark = `data:image/svg+xml,${encodeURIComponent(readFileSync(new URL('mark.svg', import.meta.url), 'utf8'))}`

const style = readFileSync(new URL('style.css', import.meta.url), 'utf8')

const description = 'RDMA in Kubernetes pods, without privileged: memlock, IPC_LOCK, and HCAs for RDMA containers, and for no others.'

export default defineConfig({
  title: 'rdma-spec',
  description,
  lang: 'en',
  base: process.env.SITE_BASE || '/',
  outDir: join(top, 'bin/site'),
  cacheDir: join(top, 'bin/site-cache'),
  rewrites: { 'index.md': 'index.md', ':page.md': ':page/index.md', 'faults/:check.md': 'faults/:check/index.md', 'design/:record.md': 'design/:record/index.md' },
  head: [['link', { rel: 'icon', type: 'image/svg+xml', href: mark }], ['style', {}, style]],
  buildConcurrency: 1, // several at once leave the search index in an order of chance
  sitemap: { hostname: canonical },
  vite: { build: { chunkSizeWarningLimit: 2000 }, plugins: [vueFromHere] },
  markdown: {
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    anchor: { slugify: heading },
    config(md) {
      repositoryLinks(md)
      messageRows(md)
      cellHeadings(md)
      logBox(md)
    },
  },
  transformHtml: withPolicy,
  // What a search engine shows: of a check, the messages that people search for.
  transformPageData(page) {
    const text = read(join('docs', page.filePath))
    const [, first = ''] = text.match(/^# .*\n+([^\n]+(?:\n[^\n]+)*)/m) ?? []
    const seen = [...(text.split('\n## Messages\n')[1] ?? '').split('\n## ')[0].matchAll(/^- (`.*`)$/gm)].map(([, message]) => message)
    const [, impact] = text.match(/^\*\*Impact:\*\* (.*)$/m) ?? []
    page.description = [(impact ?? first).replace(/\s+/g, ' ').replace(/\]\([^)]*\)|[`[*]/g, ''), ...seen.map(bare)].join(' ').slice(0, 300) ||
      page.description
    const [, check] = page.filePath.match(/^faults\/(.*)\.md$/) ?? []
    const commonest = seen.find((message) => firstPage.get(message) === check)
    if (check && commonest) page.title = `${bare(commonest)} (${page.title})`
    if (['troubleshoot.md', 'comparison.md'].includes(page.filePath)) page.frontmatter.aside = false // their tables are wide
  },
  transformHead: ({ page, title, description }) => {
    const url = canonical + page.replace(/(index)?\.md$/, '')
    const og = { type: 'website', site_name: 'rdma-spec', title, description, url }
    return [['link', { rel: 'canonical', href: url }],
      ...Object.entries(og).map(([name, content]) => ['meta', { property: `og:${name}`, content }])]
  },
  themeConfig: {
    logo: { src: mark, alt: '' },
    nav: [
      ...menu,
      { text: version, items: [{ text: 'Latest version', link: canonical }, { text: 'All versions', link: `${repository}/releases` }] },
    ],
    sidebar: {
      '/': sidebar,
      '/faults/': [{ text: 'Troubleshooting', items: troubleshooting.map((page) => entry(`${page}.md`)) }, ...families],
    },
    outline: [2, 3],
    externalLinkIcon: true,
    socialLinks: [{ icon: 'github', link: repository }],
    editLink: { pattern: `${repository}/blob/main/docs/:path`, text: 'Source of this page' },
    search: {
      provider: 'local',
      // It is hidden from what a page gets: functions come as texts there, and the page's policy forbids to evaluate one.
      options: Object.defineProperty({ _render: indexed }, 'miniSearch', { value: miniSearch }),
    },
  },
})
